"""What lies between a layer's matrix products, as single calls of the kernels: norms, residual sums, gates.

A row's bits do not depend on how many rows a call has. See src/parts.h.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from eagle3chat.kernels.cpu import library
from eagle3chat.kernels.cpu_tape import Kind, Step

DTYPES = (torch.bfloat16, torch.float32)


class _Norm(ctypes.Structure):
    """E3Norm of src/parts.h."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("width", ctypes.c_int32),
        ("is_bf16", ctypes.c_int32),
        ("eps", ctypes.c_float),
    )


class RowNorm:
    """RMS norm of rows: x / sqrt(mean(x^2) + eps) * weight, in float32, rounded once.

    Args:
        weight: [width], any float dtype.
        dtype: Of the rows.
    """

    def __init__(self, weight: Tensor, eps: float, dtype: torch.dtype) -> None:
        loaded = library()
        assert loaded is not None and dtype in DTYPES
        self._weight = weight.float().contiguous()
        self.width, self.dtype = weight.shape[0], dtype
        self._norm = _Norm(self._weight.data_ptr(), self.width, dtype == torch.bfloat16, eps)
        at, pointer = ctypes.addressof(self._norm), ctypes.c_void_p
        one, two = loaded.e3_norm, loaded.e3_add_norm
        one.argtypes, one.restype = [pointer] * 3 + [ctypes.c_int], None
        two.argtypes, two.restype = [pointer] * 5 + [ctypes.c_int], None
        # Addresses of x, out, rows; and of x, y, sum, out, rows. Nothing is checked.
        self.run, self.run_add = partial(one, at), partial(two, at)

    def __call__(self, x: Tensor) -> Tensor:
        """[M, width] -> [M, width]."""
        self._check(x)
        out = torch.empty_like(x)
        self.run(x.data_ptr(), out.data_ptr(), x.shape[0])
        return out

    def add(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """x + y, rounded to their dtype, and its norm."""
        self._check(x)
        self._check(y)
        assert x.shape == y.shape
        total, out = torch.empty_like(x), torch.empty_like(x)
        self.run_add(x.data_ptr(), y.data_ptr(), total.data_ptr(), out.data_ptr(), x.shape[0])
        return total, out

    def step(self, x: int, out: int, rows: int) -> Step:
        """The norm as a step of a tape, by address."""
        return Step(kind=Kind.NORM, rows=rows, what=ctypes.addressof(self._norm), x=x, out=out)

    def add_step(self, x: int, y: int, total: int, out: int, rows: int) -> Step:
        """`add` as a step of a tape; `total` may be `x` or `y`."""
        at = ctypes.addressof(self._norm)
        return Step(kind=Kind.ADD_NORM, rows=rows, what=at, x=x, y=y, sum=total, out=out)

    def _check(self, x: Tensor) -> None:
        assert x.dtype == self.dtype and x.shape[1] == self.width and x.is_contiguous()


class Gate:
    """act(gate) * up in float32, rounded once; act: SiLU, or GELU in its tanh form."""

    def __init__(self, width: int, activation: Literal["silu", "gelu_tanh"], dtype: torch.dtype) -> None:
        loaded = library()
        assert loaded is not None and dtype in DTYPES
        self.width, self.dtype = width, dtype
        function = loaded.e3_gate
        function.argtypes = [ctypes.c_int] * 3 + [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
        function.restype = None
        # Width, whether GELU, whether bfloat16; then addresses of gate_up and out, and rows. Nothing is checked.
        self._how = (width, activation == "gelu_tanh", dtype == torch.bfloat16)
        self.run = partial(function, *self._how)

    def __call__(self, gate_up: Tensor) -> Tensor:
        """[M, 2 * width]: gate, up -> [M, width]."""
        assert gate_up.dtype == self.dtype and gate_up.shape[1] == 2 * self.width and gate_up.is_contiguous()
        out = gate_up.new_empty(gate_up.shape[0], self.width)
        self.run(gate_up.data_ptr(), out.data_ptr(), gate_up.shape[0])
        return out

    def step(self, gate_up: int, out: int, rows: int) -> Step:
        """The same as a step of a tape, by address."""
        width, is_gelu, is_bf16 = self._how
        return Step(kind=Kind.GATE, rows=rows, x=gate_up, out=out, a=width, b=is_gelu, c=is_bf16)
