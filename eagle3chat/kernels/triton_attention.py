"""Attention of a few rows over a cache on a GPU, whose length the device alone knows.

A pass of a round has 1 to ROWS rows and a context of any length, and a captured graph has no numbers of the host's: the
first row's slot is read from memory. The keys are split among SPLITS programs for each key-value head; each keeps its
own softmax (float32), and a second kernel joins them. A split covers slots that do not hang on the number of rows but
where the context passes a power of two, so a row's sum is that of the same row alone. Only slots that some row sees are
read: what lies beyond the last row may hold anything. The twin is `twin`. With TRITON_INTERPRET=1 it runs on a CPU, for
tests. Source of splitting keys: Dao et al., "Flash-Decoding" (2023); of sinks: torch_sinks.py. Knows no cache's moves.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 16  # rows of a call at most
SPLITS = 32


@triton.jit
def _partial(
    q,
    keys,
    values,
    place,
    sums,
    tops,
    totals,
    rows,
    q_row,
    q_head,
    key_head,
    scale,
    WINDOW: tl.constexpr,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """One key-value head, one split of its keys, BLOCK_R of the rows times the group's heads."""
    kv, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    r = tl.program_id(2) * BLOCK_R + tl.arange(0, BLOCK_R)
    row, head = r // GROUP, kv * GROUP + r % GROUP
    real = row < rows
    d = tl.arange(0, BLOCK_D)
    wide = d < WIDTH
    first = tl.load(place).to(tl.int32)
    end = first + rows
    low = first * 0
    if WINDOW > 0:
        low = tl.maximum(first - WINDOW + 1, 0)
    chunk = first * 0 + BLOCK_N
    while chunk * (SPLITS - 1) < end - low:
        chunk = chunk * 2
    begin = (low // chunk + split) * chunk
    stop = tl.minimum(begin + chunk, end)
    begin = tl.maximum(begin, low // BLOCK_N * BLOCK_N)
    inside = real[:, None] & wide[None, :]
    mine = tl.load(q + row[:, None] * q_row + head[:, None] * q_head + d[None, :], mask=inside, other=0.0)
    top = tl.full((BLOCK_R,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_R,), tl.float32)
    acc = tl.zeros((BLOCK_R, BLOCK_D), tl.float32)
    for at in range(begin, stop, BLOCK_N):
        n = at + tl.arange(0, BLOCK_N)
        there = ((n >= low) & (n < end))[:, None] & wide[None, :]
        where = kv * key_head + n[:, None] * WIDTH + d[None, :]
        key = tl.load(keys + where, mask=there, other=0.0)
        scores = tl.dot(mine, tl.trans(key), input_precision="ieee") * scale
        seen = n[None, :] <= first + row[:, None]
        if WINDOW > 0:
            seen = seen & (n[None, :] > first + row[:, None] - WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # nothing seen yet: no -inf less -inf
        share = tl.exp(scores - base[:, None])
        fade = tl.exp(top - base)
        value = tl.load(values + where, mask=there, other=0.0)
        acc = acc * fade[:, None] + tl.dot(share.to(value.dtype), value, input_precision="ieee")
        total = total * fade + tl.sum(share, 1)
        top = higher
    out = (head * rows + row) * SPLITS + split
    tl.store(tops + out, top, mask=real)
    tl.store(totals + out, total, mask=real)
    tl.store(sums + out[:, None] * WIDTH + d[None, :], acc, mask=inside)


@triton.jit
def _join(
    sums,
    tops,
    totals,
    sinks,
    y,
    rows,
    heads,
    HAS_SINKS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """One row of one head out of its splits."""
    head, row = tl.program_id(0), tl.program_id(1)
    d, split = tl.arange(0, BLOCK_D), tl.arange(0, SPLITS)
    at = (head * rows + row) * SPLITS + split
    top = tl.load(tops + at)
    most = tl.max(top, 0)
    if HAS_SINKS:
        sink = tl.load(sinks + head)
        most = tl.maximum(most, sink)
    share = tl.exp(top - most)
    total = tl.sum(share * tl.load(totals + at), 0)
    if HAS_SINKS:
        total += tl.exp(sink - most)
    wide = d < WIDTH
    part = tl.load(sums + at[:, None] * WIDTH + d[None, :], mask=wide[None, :], other=0.0)
    joined = tl.sum(part * share[:, None], 0) / total
    tl.store(y + (row * heads + head) * WIDTH + d, joined.to(y.dtype.element_ty), mask=wide)


def attend(
    q: Tensor,
    cache: Tensor,
    place: Tensor,
    *,
    scale: float,
    window: int = 0,
    sinks: Tensor | None = None,
    splits: int = SPLITS,
) -> Tensor:
    """Softmax(q k) v of rows whose keys and values are in the cache already.

    Args:
        q: [M, heads, d], M <= ROWS, rows of d side by side.
        cache: [2 * kv, slots, d] contiguous, keys then values; heads is a multiple of kv.
        place: Integer [1]: the slot of row 0. Row m sees the slots up to place + m.
        scale: Of the scores.
        window: Slots that a row sees, its own included; 0: all before it.
        sinks: Float32 [heads] or None.
        splits: Programs for each key-value head, a power of two, 2 or more.

    Returns:
        [M, heads * d] in q's dtype.
    """
    rows, heads, width = q.shape
    kv = cache.shape[0] // 2
    assert 0 < rows <= ROWS and heads % kv == 0 and q.stride(2) == 1 and cache.is_contiguous()
    group = heads // kv
    block_d = max(16, triton.next_power_of_2(width))
    block_r = 16 if block_d >= 256 or rows * group <= 16 else 32
    block_n = 32 if block_d >= 256 else 64
    parts = heads * rows * splits
    sums, tops, totals = (q.new_empty(size, dtype=torch.float32) for size in (parts * width, parts, parts))
    y = q.new_empty(rows, heads * width)
    _partial[(kv, splits, triton.cdiv(rows * group, block_r))](
        q,
        cache,
        cache[kv:],
        place,
        sums,
        tops,
        totals,
        rows,
        q.stride(0),
        q.stride(1),
        cache.stride(0),
        scale,
        WINDOW=window,
        GROUP=group,
        WIDTH=width,
        BLOCK_R=block_r,
        BLOCK_N=block_n,
        BLOCK_D=block_d,
        SPLITS=splits,
        num_stages=1 if block_d >= 512 else 2,
    )
    _join[(heads, rows)](
        sums,
        tops,
        totals,
        tops if sinks is None else sinks,
        y,
        rows,
        heads,
        HAS_SINKS=sinks is not None,
        WIDTH=width,
        BLOCK_D=block_d,
        SPLITS=splits,
    )
    return y


def twin(q: Tensor, cache: Tensor, place: int, *, scale: float, window: int = 0, sinks: Tensor | None = None) -> Tensor:
    """What `attend` computes, in float64, by the whole matrix of scores: [M, heads * d]."""
    rows, heads, _ = q.shape
    kv = cache.shape[0] // 2
    keys, values = (part.repeat_interleave(heads // kv, 0) for part in cache[:, : place + rows].double().split(kv))
    scores = q.double().transpose(0, 1) @ keys.transpose(1, 2) * scale
    ages = place + torch.arange(rows, device=q.device)[:, None] - torch.arange(place + rows, device=q.device)
    hidden = (ages < 0) | (ages >= window) if window else ages < 0
    scores = scores.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks.double()[:, None, None].expand(heads, rows, 1)), -1)
    shares = scores.softmax(-1)[..., : place + rows]
    return (shares @ values).transpose(0, 1).reshape(rows, -1)
