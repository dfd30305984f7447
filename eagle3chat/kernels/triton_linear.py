"""Products of few rows with a quantised weight on a GPU: one read of the codes serves all rows.

The packed layout is read as it lies in a bundle (MLX affine): words of 32 bits, the first column in the lowest bits,
and a scale and a bias for each group of columns. A weight is dequantised in registers, rounded to the rows' dtype as
a dense one would be, and multiplied with float32 sums. Rows are padded to ROWS, so a row's sum does not depend on how
many rows a call has. Where a weight has few outputs its columns are shared among programs as well, and a second kernel
adds their sums in order: memory is only busy when enough programs ask. The twin is `twin`. With TRITON_INTERPRET=1 it
runs on a CPU, for tests. Knows no model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 16  # rows of a call at most; a tensor core's least
GROUPS = (32, 64, 128)
PROGRAMS = 528  # that keep the memory of a large device busy: four for each of 132 processors
LEAST_LOOPS = 4  # blocks of columns that a program has at least
MOST_SPLITS = 16
ADDED = 1024  # values that a program of the second kernel adds


@dataclass(frozen=True, slots=True)
class Tile:
    """How a call is cut: outputs and columns that a program works on at once, powers of two; columns hold a group."""

    outputs: int = 32
    columns: int = 128
    warps: int = 4
    stages: int = 3

    def splits(self, outputs: int, columns: int) -> int:
        """Programs that share the columns of an output."""
        wanted = -(-PROGRAMS // -(-outputs // self.outputs))
        return max(1, min(wanted, columns // (self.columns * LEAST_LOOPS), MOST_SPLITS))


TILE = Tile()


@triton.jit
def _product(
    x,
    words,
    scales,
    biases,
    y,
    added,
    rows,
    outputs,
    columns,
    words_in_row,
    groups_in_row,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_ADDED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """y [rows, outputs] = x [rows, columns] @ w^T (+ added): a program for each BLOCK_N outputs.

    With SPLITS above 1 the columns are shared, and y is [SPLITS, rows, outputs]: sums to be added.
    """
    EACH: tl.constexpr = 32 // BITS  # codes of a word
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.arange(0, ROWS)
    k = tl.arange(0, BLOCK_K)
    word = tl.arange(0, BLOCK_K // EACH)
    group = tl.arange(0, BLOCK_K // GROUP)
    shift = tl.arange(0, EACH) * BITS
    real = n < outputs
    acc = tl.zeros((ROWS, BLOCK_N), dtype=tl.float32)
    share = tl.cdiv(tl.cdiv(columns, BLOCK_K), SPLITS) * BLOCK_K
    begin = tl.program_id(1) * share
    for start in range(begin, tl.minimum(begin + share, columns), BLOCK_K):
        inside = start + k < columns
        rows_in = tl.load(
            x + m[:, None] * columns + start + k[None, :], mask=(m < rows)[:, None] & inside[None, :], other=0.0
        )
        # Counted in words, with the row as an argument: so the compiler sees that four words can be one load.
        along = start // EACH + word
        at = n[None, :] * words_in_row + along[:, None]
        packed = tl.load(words + at, mask=real[None, :] & (along < words_in_row)[:, None], other=0)
        codes = (packed[:, None, :] >> shift[None, :, None]) & ((1 << BITS) - 1)
        codes = tl.reshape(codes, (BLOCK_K // GROUP, GROUP, BLOCK_N)).to(tl.float32)
        along = start // GROUP + group
        at = n[None, :] * groups_in_row + along[:, None]
        known = real[None, :] & (along < groups_in_row)[:, None]
        scale = tl.load(scales + at, mask=known, other=0.0).to(tl.float32)
        bias = tl.load(biases + at, mask=known, other=0.0).to(tl.float32)
        weight = codes * scale[:, None, :] + bias[:, None, :]
        weight = tl.reshape(weight, (BLOCK_K, BLOCK_N)).to(rows_in.dtype)
        acc += tl.dot(rows_in, weight, input_precision="ieee")
    if HAS_ADDED:
        acc += tl.load(added + n, mask=real, other=0.0)[None, :]
    at = (tl.program_id(1) * rows + m)[:, None] * outputs + n[None, :]
    tl.store(y + at, acc.to(y.dtype.element_ty), mask=(m < rows)[:, None] & real[None, :])


@triton.jit
def _add(sums, y, added, size, outputs, HAS_ADDED: tl.constexpr, SPLITS: tl.constexpr, ADDED: tl.constexpr):
    """y [size] = the SPLITS sums of each value, in order (+ added)."""
    at = tl.program_id(0) * ADDED + tl.arange(0, ADDED)
    real = at < size
    acc = tl.zeros((ADDED,), dtype=tl.float32)
    for split in tl.static_range(SPLITS):
        acc += tl.load(sums + split * size + at, mask=real, other=0.0)
    if HAS_ADDED:
        acc += tl.load(added + at % outputs, mask=real, other=0.0)
    tl.store(y + at, acc.to(y.dtype.element_ty), mask=real)


class TritonLinear:
    """x @ w.T (+ bias) for a quantised w, on the device of its words.

    Args:
        words: Int32 [N, K * bits / 32], the first column in the lowest bits.
        scales, biases: [N, K / group], float32 or shorter, and read as they are: w = scales * code + biases.
        bits: 4 or 8.
        group: 32, 64 or 128; divides K.
        bias: [N] or None.
        wide: Results are float32 whatever the rows are.
        tile: How its calls are cut.
    """

    def __init__(
        self,
        words: Tensor,
        scales: Tensor,
        biases: Tensor,
        *,
        bits: int,
        group: int,
        bias: Tensor | None = None,
        wide: bool = False,
        tile: Tile = TILE,
    ) -> None:
        assert bits in (4, 8) and group in GROUPS and words.dtype == torch.int32
        self.words = words.contiguous()
        self.scales, self.biases = scales.contiguous(), biases.contiguous()
        self.bits, self.group, self.wide, self.tile = bits, group, wide, tile
        self.rows, self.columns = words.shape[0], words.shape[1] * 32 // bits
        self.bias = None if bias is None else bias.float().contiguous()
        self.nbytes = self.words.nbytes + self.scales.nbytes + self.biases.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """x [M, K] in float32 or bfloat16 -> [M, N]; more than ROWS rows go through a dense weight of the call."""
        if x.shape[0] > ROWS:
            y = torch.nn.functional.linear(x, self.dense().to(x.dtype))
            y = y.float() if self.wide else y
            return y if self.bias is None else y + self.bias.to(y.dtype)
        x = x.contiguous()
        rows, tile = x.shape[0], self.tile
        y = x.new_empty(rows, self.rows, dtype=torch.float32 if self.wide else x.dtype)
        splits = tile.splits(self.rows, self.columns)
        sums = y if splits == 1 else x.new_empty(splits, rows, self.rows, dtype=torch.float32)
        added = self.scales if self.bias is None else self.bias
        _product[(triton.cdiv(self.rows, tile.outputs), splits)](
            x,
            self.words,
            self.scales,
            self.biases,
            sums,
            added,
            rows,
            self.rows,
            self.columns,
            self.words.shape[1],
            self.scales.shape[1],
            BITS=self.bits,
            GROUP=self.group,
            HAS_ADDED=self.bias is not None and splits == 1,
            ROWS=ROWS,
            BLOCK_N=tile.outputs,
            BLOCK_K=tile.columns,
            SPLITS=splits,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
        if splits > 1:
            size = rows * self.rows
            has_added = self.bias is not None
            grid = (triton.cdiv(size, ADDED),)
            _add[grid](sums, y, added, size, self.rows, HAS_ADDED=has_added, SPLITS=splits, ADDED=ADDED)
        return y

    def dense(self) -> Tensor:
        """Float32 [N, K]."""
        places = torch.arange(0, 32, self.bits, dtype=torch.int32, device=self.words.device)
        codes = (self.words[..., None] >> places) & (2**self.bits - 1)
        grouped = codes.view(self.rows, -1, self.group).float()
        return (grouped * self.scales.float()[..., None] + self.biases.float()[..., None]).view(self.rows, self.columns)


def packed_words(codes: Tensor, bits: int) -> Tensor:
    """Codes U8 [N, K] of 4 or 8 bits as int32 words [N, K * bits / 32], the first column in the lowest bits."""
    if bits == 4:
        codes = codes[:, 0::2] | codes[:, 1::2] << 4
    return codes.contiguous().view(torch.int32)


def twin(linear: TritonLinear, x: Tensor) -> Tensor:
    """What `TritonLinear` computes, in float64 after the weight's rounding to x's dtype: [M, N]."""
    y = x.double() @ linear.dense().to(x.dtype).double().t()
    return y if linear.bias is None else y + linear.bias.double()
