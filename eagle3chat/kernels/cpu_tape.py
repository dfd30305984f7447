"""The calls of a pass, ready: played by the compiled kernels one after another, without Python in between.

A step is addresses and numbers, made by the kernel that it calls (`CpuLinear.step`, `Attend.step`, ..). Whoever
records a tape keeps what the addresses point to. The twin is the same kernels called one by one. Knows no kernel. See
src/tape.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from enum import IntEnum
from functools import cache
from typing import Any

from eagle3chat.kernels.cpu import library


class Kind(IntEnum):
    """What a step calls; numbers as in src/tape.h."""

    LINEAR = 0
    ATTEND = 1
    NORM = 2
    ADD_NORM = 3
    GATE = 4
    ROWS = 5
    COPY = 6


class Step(ctypes.Structure):
    """E3Step of src/tape.h."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("rows", ctypes.c_int32),
        ("what", ctypes.c_void_p),
        ("x", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("sum", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("a", ctypes.c_int64),
        ("b", ctypes.c_int64),
        ("c", ctypes.c_int64),
    )


def copy(x: int, out: int, rows: int, row_bytes: int, stride: int, stride_out: int) -> Step:
    """Rows of `row_bytes` from one address to another; strides in bytes."""
    return Step(kind=Kind.COPY, rows=rows, x=x, out=out, a=row_bytes, b=stride, c=stride_out)


class Tape:
    """Steps, recorded.

    Args:
        steps: In order.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = (Step * len(steps))(*steps)
        self._at, self._play = ctypes.addressof(self._steps), _function()

    @property
    def kinds(self) -> list[Kind]:
        """Of each step."""
        return [Kind(step.kind) for step in self._steps]

    def read(self, address: int) -> None:
        """Where the first step finds its rows from now on."""
        self._steps[0].x = address

    def __call__(self, start: int) -> None:
        """All steps; `start`: position of the first row."""
        self._play(self._at, len(self._steps), start)

    def one(self, index: int, start: int) -> None:
        """A single step."""
        self._play(self._at + index * ctypes.sizeof(Step), 1, start)


@cache
def _function() -> Any:
    """`e3_play`; other threads run meanwhile, unlike in single kernels: a pass lasts milliseconds."""
    loaded = library()
    assert loaded is not None
    play = ctypes.CDLL(loaded._name).e3_play
    play.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    play.restype = None
    return play
