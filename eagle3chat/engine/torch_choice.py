"""The choice rule on a device, and all that a round reports, as one small tensor.

The same function as `engine.sampling`: filters are thresholds on values, so that ties stay and a row
gives the same answer alone and among others. Nothing here waits for the device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3chat.engine.backend import Verdict
from eagle3chat.engine.sampling import Sampling
from eagle3chat.kernels import cpu_choice
from eagle3chat.kernels.cpu import library

RUNNERS_UP = 4
BLOCK = 128
CHOSEN, CHOSEN_P, MARGIN, TARGET_P, IDS, PS = 0, 1, 2, 3, 4, 4 + RUNNERS_UP
COLUMNS = PS + RUNNERS_UP


@dataclass(frozen=True, slots=True)
class Judged:
    """What the target said at one row, on the host."""

    chosen: int
    chosen_p: float
    margin: float
    target_p: float  # of the drafted token there; meaningless in the bonus row
    runners_up: tuple[tuple[int, float], ...]


def nucleus(p: Tensor, top_p: float, fixed: bool = False) -> Tensor:
    """The least probability [R, 1] that top-p keeps: kept is a token while all more probable ones have less than top_p.

    On a CPU only the tokens that can be among them are sorted: those below (1 - top_p) / V all together have less
    than 1 - top_p. Elsewhere everything is, since to know how many there are would mean to wait; so with `fixed`.
    """
    if fixed or p.device.type != "cpu":
        return _least(p.sort(-1, descending=True).values, top_p)
    floor = (1.0 - top_p) / p.shape[-1] * 0.999  # a little less: sums of float32 are not exact
    rows = [row[row >= floor].sort(descending=True).values for row in p]
    return torch.stack([_least(row[None], top_p)[0] for row in rows])


def _least(ordered: Tensor, top_p: float) -> Tensor:
    """The last of the probabilities [R, n], falling, that top-p keeps, [R, 1]."""
    before = ordered.double().cumsum(-1) - ordered
    last = (before < top_p).sum(-1, keepdim=True) - 1
    return ordered.gather(-1, last)


def filtered(logits: Tensor, sampling: Sampling, fixed: bool = False) -> Tensor:
    """Float32 logits [R, V] after temperature, top-k, top-p and min-p; -inf: dropped. See `nucleus` for `fixed`."""
    if sampling.temperature == 0.0:
        return logits
    scaled = logits / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        find = largest if logits.device.type == "cpu" and not fixed else torch.topk
        least = find(scaled, sampling.top_k)[0][:, -1:]
        scaled = scaled.masked_fill(scaled < least, -torch.inf)
    if sampling.top_p < 1.0:
        p = scaled.softmax(-1)
        scaled = scaled.masked_fill(p < nucleus(p, sampling.top_p, fixed), -torch.inf)
    if sampling.min_p > 0.0:
        p = scaled.softmax(-1)
        scaled = scaled.masked_fill(p < sampling.min_p * p.amax(-1, keepdim=True), -torch.inf)
    return scaled


def winner(x: Tensor) -> tuple[Tensor, Tensor]:
    """The largest value of each row [R, 1] and its place; the first of equal ones.

    By blocks: a maximum without a place reads a row many times faster than one with it.
    """
    rows, width = x.shape
    if width % BLOCK:
        return x.max(-1, keepdim=True)
    blocks = x.view(rows, -1, BLOCK)
    best, block = blocks.amax(-1).max(-1, keepdim=True)
    inside = blocks.gather(1, block[..., None].expand(rows, 1, BLOCK)).view(rows, BLOCK)
    return best, block * BLOCK + inside.argmax(-1, keepdim=True)


def largest(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest values of each row [R, count], in order, and their places.

    They lie in the `count` blocks with the largest maxima.
    """
    rows, width = x.shape
    if width % BLOCK or width < BLOCK * count:
        values, places = x.topk(count, -1)
        return values, places
    blocks = x.view(rows, -1, BLOCK)
    chosen = blocks.amax(-1).topk(count, -1).indices  # [R, count]
    inside = blocks.gather(1, chosen[..., None].expand(rows, count, BLOCK)).view(rows, -1)
    values, places = inside.topk(count, -1)
    return values, chosen.gather(-1, places // BLOCK) * BLOCK + places % BLOCK


def judge(logits: Tensor, noise: Tensor | None, drafted: Tensor, sampling: Sampling) -> Tensor:
    """What `judge_plainly` says; on a CPU by one call of the compiled kernels, after the filters."""
    if logits.device.type != "cpu" or logits.shape[-1] < RUNNERS_UP or library() is None:
        return judge_plainly(logits, noise, drafted, sampling)
    temperature = sampling.temperature or 1.0
    if sampling.temperature and (sampling.top_k or sampling.top_p < 1.0 or sampling.min_p):
        logits, temperature = filtered(logits, sampling), 1.0
    return cpu_choice.judge(logits.contiguous(), noise, drafted, temperature)


def judge_plainly(
    logits: Tensor, noise: Tensor | None, drafted: Tensor, sampling: Sampling, fixed: bool = False
) -> Tensor:
    """Everything the target says about its rows.

    Args:
        logits: Float32 [R, V].
        noise: Float32 [R, V] of the rows' positions; None: greedy.
        drafted: Int64 [R], the token to judge in each row (any id in the bonus row).
        fixed: No shape may hang on a value.

    Returns:
        Float32 [R, COLUMNS]; ids are exact up to 2**24.
    """
    scaled = filtered(logits, sampling, fixed)
    perturbed = scaled if noise is None else scaled + noise
    top, ids = largest(scaled, RUNNERS_UP)
    best, chosen = winner(perturbed)
    second = (top if noise is None else largest(perturbed, 2)[0])[:, 1:2]
    picked = torch.cat((chosen, drafted[:, None], ids), -1)
    p = scaled.log_softmax(-1).gather(-1, picked).exp_()
    return torch.cat((chosen.float(), p[:, :1], best - second, p[:, 1:2], ids.float(), p[:, 2:]), -1)


def verdict_of(lines: list[list[float]], draft_seconds: float, verify_seconds: float) -> Verdict:
    """A round's table on the host, a row of `judge` with the drafted id and its probability behind it each."""
    drafted, draft_p, target_p, chosen, chosen_p, runners_up, margins = [], [], [], [], [], [], []
    for line in lines:  # one by one: a round lasts milliseconds
        chosen.append(int(line[CHOSEN]))
        chosen_p.append(line[CHOSEN_P])
        margins.append(math.inf if line[MARGIN] != line[MARGIN] else line[MARGIN])
        target_p.append(line[TARGET_P])
        pairs = zip(line[IDS:PS], line[PS:COLUMNS], strict=True)
        runners_up.append(tuple([(int(i), p) for i, p in pairs if p > 0.0]))
        drafted.append(int(line[COLUMNS]))
        draft_p.append(line[COLUMNS + 1])
    chain = len(lines) - 1
    return Verdict(
        drafted=tuple(drafted[:chain]),
        draft_p=tuple(draft_p[:chain]),
        target_p=tuple(target_p[:chain]),
        chosen=tuple(chosen),
        chosen_p=tuple(chosen_p),
        runners_up=tuple(runners_up),
        margin=tuple(margins),
        draft_seconds=draft_seconds,
        verify_seconds=verify_seconds,
    )


def read(row: list[float]) -> Judged:
    """One row of `judge`, on the host."""
    pairs = zip(row[IDS:PS], row[PS:COLUMNS], strict=True)
    return Judged(
        chosen=int(row[CHOSEN]),
        chosen_p=row[CHOSEN_P],
        margin=math.inf if math.isnan(row[MARGIN]) else row[MARGIN],
        target_p=row[TARGET_P],
        runners_up=tuple((int(i), p) for i, p in pairs if p > 0.0),
    )
