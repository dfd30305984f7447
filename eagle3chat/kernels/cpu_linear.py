"""Products of few rows with a quantised weight, through the compiled kernels, and their plain twin.

The kernels read a weight once for up to 8 rows and quantise the activations to 8 bits as they come in; the
rule is written in src/linear.h. A row's numbers depend on nothing but the row and the weight. Knows no model.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from eagle3chat.kernels.cpu import Variant, library, variant
from eagle3chat.kernels.cpu_tape import Kind, Step

BLOCK = 32  # columns that share an activation step; K and groups are multiples of it
TINY = 2.0**-100


class CpuLinear:
    """x @ w.T (+ bias) with w = scales * codes + biases by group of columns.

    Args:
        codes: U8 [N, K], below 2^bits.
        scales: [N, K / group], any float dtype that float32 holds.
        biases: Like scales: what is added to each weight of a group.
        group: A multiple of 32.
        bits: 4 or 8.
        bias: [N], added to the product, or None.
        wide: Results in float32 instead of bfloat16.

    Raises:
        MemoryError: No room for the packed weight.
    """

    def __init__(
        self,
        codes: Tensor,
        scales: Tensor,
        biases: Tensor,
        *,
        group: int,
        bits: int,
        bias: Tensor | None = None,
        wide: bool = False,
    ) -> None:
        loaded = library()
        assert loaded is not None, "ask library() or usable() first"
        self.rows, self.columns = codes.shape
        assert fits(self.columns, group, bits) and codes.dtype == torch.uint8, (codes.shape, group, bits)
        assert scales.shape == biases.shape == (self.rows, self.columns // group), (scales.shape, biases.shape)
        self.wide, self.dtype = wide, torch.float32 if wide else torch.bfloat16
        held = [codes.contiguous(), scales.float().contiguous(), biases.float().contiguous()]
        held += [] if bias is None else [bias.float().contiguous()]
        pointers = [tensor.data_ptr() for tensor in held] + [None] * (4 - len(held))
        _declare(loaded)
        self._free, self._run = loaded.e3_linear_free, loaded.e3_linear_run
        self._handle = loaded.e3_linear_new(*pointers, self.rows, self.columns, bits, group)
        if not self._handle:
            raise MemoryError(f"No room for a weight of {codes.numel() * bits // 8} bytes.")
        self.nbytes = int(loaded.e3_linear_bytes(self._handle))

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """x bfloat16 [M, K] -> [M, N]; with a bfloat16 residual [M, N], that plus the rounded product."""
        if not x.is_contiguous():
            x = x.contiguous()
        rows = x.shape[0]
        y = torch.empty((rows, self.rows), dtype=self.dtype)
        other = None if residual is None else residual.data_ptr()
        self._run(self._handle, x.data_ptr(), y.data_ptr(), rows, self.wide, other)
        return y

    def step(self, x: int, y: int, rows: int) -> Step:
        """The product as a step of a tape, of addresses of [rows, K] and [rows, N]."""
        return Step(kind=Kind.LINEAR, rows=rows, what=self._handle, x=x, out=y, a=self.wide)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._free(self._handle)


def usable() -> bool:
    """Whether this CPU has a variant that is faster than torch's own kernels; the portable one is not."""
    return variant() not in (None, Variant.PORTABLE)


def fits(columns: int, group: int, bits: int) -> bool:
    """Whether the kernels take a weight of this form."""
    return bits in (4, 8) and group % BLOCK == 0 and columns % group == 0


def eight_bit(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A dense weight [N, K] as symmetric 8-bit groups of 32: codes [N, K], scales and biases float32 [N, K / 32].

    The codes are q + 128 with q of -127 .. 127; a weight moves by at most half of its group's largest / 127.
    """
    grouped = weight.float().view(weight.shape[0], -1, BLOCK)
    scales = grouped.abs().amax(-1) / 127.0
    inverse = torch.where(scales > 0, 1.0 / scales, 0.0)
    codes = (grouped * inverse[..., None]).round_().clamp_(-127, 127).add_(128.0)
    return codes.to(torch.uint8).view(weight.shape), scales, scales * -128.0


def four_bit(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A dense weight [N, K] as 4-bit groups of 32 with a bias: codes [N, K], scales and biases float32 [N, K / 32].

    Of a few ranges, each smaller than the group's, the one that fits best after a least-squares fit of scale and bias
    to its codes; both have float16 values, as the kernels like them.
    """
    grouped = weight.float().view(weight.shape[0], -1, BLOCK)
    low, high = grouped.aminmax(dim=-1, keepdim=True)
    mean = grouped.mean(-1, keepdim=True)
    best: tuple[Tensor, ...] = ()
    for share in (1.0, 0.92, 0.84, 0.76):
        scale = ((high - low) * (share / 15.0)).clamp_min_(TINY)
        codes = ((grouped - ((high + low) / 2 - 7.5 * scale)) / scale).round_().clamp_(0, 15)
        around = codes - codes.mean(-1, keepdim=True)
        spread = around.square().sum(-1, keepdim=True)
        fit = (around * (grouped - mean)).sum(-1, keepdim=True) / spread.clamp_min(TINY)
        scale = torch.where(spread > 0, fit, 0.0).half().float()
        bias = (mean - scale * codes.mean(-1, keepdim=True)).half().float()
        error = (codes * scale + bias - grouped).square().sum(-1, keepdim=True)
        found = (error, codes, scale, bias)
        best = (
            tuple(torch.where(error < best[0], new, old) for new, old in zip(found, best, strict=True))
            if best
            else found
        )
    _, codes, scale, bias = best
    return codes.to(torch.uint8).view(weight.shape), scale.squeeze(-1), bias.squeeze(-1)


def twin(x: Tensor, codes: Tensor, scales: Tensor, biases: Tensor, *, group: int, bias: Tensor | None = None) -> Tensor:
    """What `CpuLinear` computes, in float64 after the quantisation of x, without a last rounding: [M, N]."""
    rows, columns = x.shape
    blocks = x.float().view(rows, -1, BLOCK)
    largest = blocks.abs().amax(-1, keepdim=True)
    quiet = largest < TINY
    steps = torch.where(quiet, 0.0, largest / 127.0)
    inverse = torch.full_like(largest, 127.0) / torch.where(quiet, 1.0, largest)  # 127 / t would be 127 * (1 / t)
    q = torch.where(quiet, 0.0, (blocks * inverse).round_())
    weight = codes.double().view(len(codes), -1, group) * scales.double()[..., None] + biases.double()[..., None]
    y = (q.double() * steps.double()).view(rows, columns) @ weight.view(len(codes), columns).t()
    return y if bias is None else y + bias.double()


def _declare(loaded: Any) -> None:
    """Argument types, so that a call converts without looking."""
    pointer, number = ctypes.c_void_p, ctypes.c_int
    loaded.e3_linear_new.argtypes = [pointer] * 4 + [number] * 4
    loaded.e3_linear_new.restype = pointer
    loaded.e3_linear_free.argtypes = [pointer]
    loaded.e3_linear_free.restype = None
    loaded.e3_linear_bytes.argtypes = [pointer]
    loaded.e3_linear_bytes.restype = ctypes.c_int64
    loaded.e3_linear_run.argtypes = [pointer, pointer, pointer, number, number, pointer]
    loaded.e3_linear_run.restype = None
