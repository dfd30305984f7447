"""One layer's attention as one call of the kernels: head norms, rotation, cache rows, softmax.

Few rows and many have a kernel each. A row's bits depend on its own input and on the cache before it, not on how many
rows a call has, as long as it is the same kernel. Knows no projections. See src/attention.h.
"""

from __future__ import annotations

import ctypes
from functools import partial

import torch
from torch import Tensor

from eagle3chat.kernels.cpu import library
from eagle3chat.kernels.cpu_tape import Kind, Step

DTYPES = (torch.bfloat16, torch.float32)
DIM_STEP, MAX_DIM = 16, 512  # of a head
FEW_ROWS = 16  # a call of more goes to the kernel of many


class _Layer(ctypes.Structure):
    """E3Attention of src/attention.h."""

    _fields_ = (
        ("cache", ctypes.c_void_p),
        ("cosines", ctypes.c_void_p),
        ("sines", ctypes.c_void_p),
        ("q_norm", ctypes.c_void_p),
        ("k_norm", ctypes.c_void_p),
        ("head_stride", ctypes.c_int64),
        ("table_stride", ctypes.c_int64),
        ("heads", ctypes.c_int32),
        ("kv_heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("is_bf16", ctypes.c_int32),
        ("table_is_bf16", ctypes.c_int32),
        ("eps", ctypes.c_float),
        ("scale", ctypes.c_float),
    )


def fits(cache: Tensor) -> bool:
    """Whether the kernels are here and take a cache [.., d] like this one."""
    d = cache.shape[-1]
    able = cache.device.type == "cpu" and cache.dtype in DTYPES and d % DIM_STEP == 0 and d <= MAX_DIM
    return able and library() is not None


class Attend:
    """The attention of one layer, bound to its part of the cache.

    Args:
        cache: [2 * kv_heads, capacity, d]: keys, then values; bfloat16 or float32; rows of a head contiguous.
        heads: Of queries.
        cosines, sines: [length >= capacity, d] of each position, bfloat16 or float32; the last dimension contiguous.
            The first half's sines are negative: y[j] = x[j] cos[j] + x[(j + d/2) % d] sin[j].
        q_norm, k_norm: [d] RMS norms by head before the rotation; both or none.
        eps: Of the norms.
        scale: Of the scores; None: 1 / sqrt(d).
    """

    def __init__(
        self,
        cache: Tensor,
        heads: int,
        cosines: Tensor,
        sines: Tensor,
        q_norm: Tensor | None = None,
        k_norm: Tensor | None = None,
        eps: float = 0.0,
        scale: float | None = None,
    ) -> None:
        loaded = library()
        assert loaded is not None and fits(cache)
        kv_heads, capacity, d = cache.shape[0] // 2, cache.shape[1], cache.shape[2]
        assert cache.stride(1) == d and cache.stride(2) == 1 and heads % kv_heads == 0
        assert cosines.dtype == sines.dtype and cosines.dtype in DTYPES and cosines.stride() == sines.stride()
        assert cosines.shape[0] >= capacity and cosines.shape[1] == d and cosines.stride(1) == 1
        assert (q_norm is None) == (k_norm is None)
        norms = [norm if norm is None else norm.float().contiguous() for norm in (q_norm, k_norm)]
        self._layer = _Layer(
            cache=cache.data_ptr(),
            cosines=cosines.data_ptr(),
            sines=sines.data_ptr(),
            q_norm=None if norms[0] is None else norms[0].data_ptr(),
            k_norm=None if norms[1] is None else norms[1].data_ptr(),
            head_stride=cache.stride(0),
            table_stride=cosines.stride(0),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=d,
            is_bf16=cache.dtype == torch.bfloat16,
            table_is_bf16=cosines.dtype == torch.bfloat16,
            eps=eps,
            scale=d**-0.5 if scale is None else scale,
        )
        self._kept = (cache, cosines, sines, norms)  # what the addresses point to
        self.capacity, self.dtype = capacity, cache.dtype
        self.width_in, self.width = (heads + 2 * kv_heads) * d, heads * d
        for function in (loaded.e3_attend, loaded.e3_attend_many):
            function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
            function.restype = None
        # run(address of qkv, address of out, rows, start): nothing is checked.
        self.run = partial(loaded.e3_attend, ctypes.addressof(self._layer))
        self.run_many = partial(loaded.e3_attend_many, ctypes.addressof(self._layer))

    def __call__(self, qkv: Tensor, start: int) -> Tensor:
        """qkv [M, (heads + 2 kv) * d] of positions start .. start + M - 1 -> [M, heads * d]; writes the cache."""
        rows = qkv.shape[0]
        assert qkv.dtype == self.dtype and qkv.shape[1] == self.width_in and qkv.is_contiguous()
        assert start >= 0 and start + rows <= self.capacity
        out = qkv.new_empty(rows, self.width)
        (self.run if rows <= FEW_ROWS else self.run_many)(qkv.data_ptr(), out.data_ptr(), rows, start)
        return out

    def step(self, qkv: int, out: int, rows: int) -> Step:
        """The same as a step of a tape, for FEW_ROWS rows at most, by address."""
        return Step(kind=Kind.ATTEND, rows=rows, what=ctypes.addressof(self._layer), x=qkv, out=out)
