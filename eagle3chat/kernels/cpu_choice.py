"""The choice of tokens as single calls of the kernels: noise, what a target says of its rows, a proposal.

The twins are `engine.torch_noise.Noise.gumbel_plainly` and `engine.torch_choice.judge_plainly`. A row's bits do not
depend on how many rows a call has, nor on the threads. See src/choice.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from eagle3chat.kernels.cpu import library

COLUMNS = 12  # of a judged row: chosen, its p, margin, p of the drafted, ids of the 4 most probable, their p


@cache
def _functions() -> Any:
    """The library with its argument types declared, so that a call converts without looking."""
    loaded = library()
    assert loaded is not None
    pointer, number, real = ctypes.c_void_p, ctypes.c_int, ctypes.c_float
    loaded.e3_gumbel.argtypes = [pointer, number, number, pointer]
    loaded.e3_judge.argtypes = [pointer, pointer, pointer, number, number, real, pointer]
    loaded.e3_pick.argtypes = [pointer, pointer, pointer, number, real, real, pointer, pointer]
    for function in (loaded.e3_gumbel, loaded.e3_judge, loaded.e3_pick):
        function.restype = None
    return loaded


def gumbel(keys: Sequence[tuple[int, int]], width: int) -> Tensor:
    """Float32 [len(keys), width]: standard Gumbel noise of token ids 0 .. width - 1 under each position's keys."""
    words = (ctypes.c_uint32 * (2 * len(keys)))(*(word for pair in keys for word in pair))
    out = torch.empty(len(keys), width)
    _functions().e3_gumbel(words, len(keys), width, out.data_ptr())
    return out


def judge(logits: Tensor, noise: Tensor | None, drafted: Tensor, temperature: float) -> Tensor:
    """Float32 [R, COLUMNS]: what a target says of its rows, without filters.

    Args:
        logits: Float32 [R, V]; minus infinity: dropped. V is 2 or more.
        noise: Float32 [R, V], or None: the largest logit is chosen.
        drafted: Int64 [R].
        temperature: Divides the logits; above 0.
    """
    rows, width = logits.shape
    assert logits.dtype == torch.float32 and logits.is_contiguous() and drafted.is_contiguous()
    assert noise is None or (noise.shape == logits.shape and noise.is_contiguous())
    out = torch.empty(rows, COLUMNS)
    heard = None if noise is None else noise.data_ptr()
    _functions().e3_judge(logits.data_ptr(), heard, drafted.data_ptr(), rows, width, temperature, out.data_ptr())
    return out


def pick(
    logits: int, noise: int | None, ids: int, width: int, temperature: float, sharpness: float, id_at: int, p_at: int
) -> None:
    """A proposal: the place with the largest logits / temperature / sharpness + noise[ids[place]].

    All of it by address, and nothing is checked: logits float32 [width], noise float32 [V] or None (then the largest
    logit), ids int64 [width]. Writes ids[place] to `id_at` (int64) and its probability, by softmax of
    logits / temperature, to `p_at` (float32).
    """
    _functions().e3_pick(logits, noise, ids, width, temperature, sharpness, id_at, p_at)
