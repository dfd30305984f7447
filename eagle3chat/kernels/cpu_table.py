"""Rows of an 8-bit embedding as one call of the kernels. The twin is what `engine.torch_linear.CodeTable` does without.

Knows no model. See src/table.h.
"""

from __future__ import annotations

import ctypes
from functools import partial

import torch
from torch import Tensor

from eagle3chat.kernels.cpu import library
from eagle3chat.kernels.cpu_tape import Kind, Step

DTYPES = (torch.bfloat16, torch.float32)


class _Table(ctypes.Structure):
    """E3Table of src/table.h."""

    _fields_ = (
        ("codes", ctypes.c_void_p),
        ("params", ctypes.c_void_p),
        ("width", ctypes.c_int32),
        ("group", ctypes.c_int32),
        ("is_bf16", ctypes.c_int32),
    )


class TableRows:
    """An embedding, bound.

    Args:
        codes: U8 [V, K].
        params: Float32 [V, 2, K / group, ...]: scales, biases.
        dtype: Of the rows that come out.
    """

    def __init__(self, codes: Tensor, params: Tensor, group: int, dtype: torch.dtype) -> None:
        loaded = library()
        assert loaded is not None and dtype in DTYPES
        assert codes.dtype == torch.uint8 and codes.is_contiguous()
        assert params.dtype == torch.float32 and params.is_contiguous() and params.numel() * group == codes.numel() * 2
        self._kept = (codes, params)  # what the addresses point to
        self.width, self.dtype = codes.shape[1], dtype
        self._table = _Table(codes.data_ptr(), params.data_ptr(), self.width, group, dtype == torch.bfloat16)
        function = loaded.e3_table_rows
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
        function.restype = None
        # run(address of int64 ids, how many, address of out): nothing is checked, ids neither.
        self.run = partial(function, ctypes.addressof(self._table))

    def __call__(self, ids: Tensor) -> Tensor:
        """Int64 [M], each below V -> [M, K]."""
        out = torch.empty(ids.shape[0], self.width, dtype=self.dtype)
        self.run(ids.contiguous().data_ptr(), ids.shape[0], out.data_ptr())
        return out

    def step(self, ids: int, rows: int, out: int) -> Step:
        """The same as a step of a tape, by address."""
        return Step(kind=Kind.ROWS, rows=rows, what=ctypes.addressof(self._table), x=ids, out=out)
