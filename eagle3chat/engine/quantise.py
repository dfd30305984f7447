"""Making a dense matrix [.., N, K] MLX affine, w = scale * u + bias by group of columns, with float16 parameters.

    8 bits   symmetric: codes -127 .. 127 around 128, the scale a 127th of the group's largest
    4 bits   the group's range in 15 steps, to the nearest
    refined  codes, then the scale and bias that fit them best, in turns, from a few ranges; as HQQ does, but by least
             squares instead of a norm below 1, and with the scale as well

Codes are chosen for the parameters as they are stored. A matrix is read some rows at a time. Knows no model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle3chat.engine.affine import pack
from eagle3chat.engine.errors import CheckpointError
from eagle3chat.engine.tensor_file import ITEM_BYTES, Buffer, LazyTensor

Array = npt.NDArray[Any]
F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]
BLOCK = 1 << 21  # weights that are worked on at once
SHARES = (1.0, 0.92, 0.84, 0.76)
"""Of a group's range, to begin a refinement with: what few weights reach costs all others precision."""
TURNS = 4
TINY = 2.0**-100
LARGEST = 6e4  # of a weight, so that biases fit float16


@dataclass(frozen=True, slots=True)
class Coding:
    """How a matrix is quantised."""

    bits: int = 4  # 4 or 8
    group: int = 32
    refine: bool = False  # of 4 bits


@dataclass(slots=True)
class Errors:
    """What quantising cost, by tensor: squared error and squared weights, summed."""

    sums: dict[str, tuple[float, float]] = field(default_factory=dict)

    def note(self, name: str, error: float, weights: float) -> None:
        """Of one tensor."""
        self.sums[name] = error, weights

    def __str__(self) -> str:
        """The relative error of all and of the worst."""
        total = np.sum(list(self.sums.values()), axis=0)
        worst, share = max(((n, _relative(*pair)) for n, pair in self.sums.items()), key=lambda pair: pair[1])
        return f"relative error {_relative(*total):.3%}, at most {share:.3%} ({worst.removesuffix('.weight')})"


def _relative(error: float, weights: float) -> float:
    return float((error / weights) ** 0.5) if weights > 0 else 0.0


def quantised(tensor: LazyTensor, coding: Coding, errors: Errors) -> tuple[LazyTensor, LazyTensor, LazyTensor]:
    """The weight, scales and biases that a dense tensor `X.weight` becomes.

    They are made together when the first is read, and each is kept until it was read: write them one after the other.

    Raises:
        CheckpointError: When they are read: a number is not finite, or too large for float16.
    """
    module, columns = tensor.name.removesuffix(".weight"), tensor.shape[-1]
    assert columns % coding.group == 0 and tensor.dtype in ("F32", "F16", "BF16"), tensor
    work = _Work(tensor, coding, errors)
    words = (*tensor.shape[:-1], columns * coding.bits // 32)
    groups = (*tensor.shape[:-1], columns // coding.group)
    return (
        LazyTensor(f"{module}.weight", "U32", words, lambda: work.take("weight")),
        LazyTensor(f"{module}.scales", "F16", groups, lambda: work.take("scales")),
        LazyTensor(f"{module}.biases", "F16", groups, lambda: work.take("biases")),
    )


class _Work:
    """One matrix on its way."""

    def __init__(self, tensor: LazyTensor, coding: Coding, errors: Errors) -> None:
        self.tensor, self.coding, self.errors = tensor, coding, errors
        self.made: dict[str, Buffer] = {}

    def take(self, part: str) -> Buffer:
        """One of the three; what is taken is let go of."""
        if part not in self.made:
            self.made = self._run()
        return self.made.pop(part)

    def _run(self) -> dict[str, Buffer]:
        tensor, coding = self.tensor, self.coding
        rows, columns = prod(tensor.shape[:-1]), tensor.shape[-1]
        words = np.empty((rows, columns * coding.bits // 32), "<u4")
        scales, biases = (np.empty((rows, columns // coding.group), "<f2") for _ in range(2))
        error = weights = 0.0
        for start, block in row_blocks(tensor):
            end = start + len(block)
            if max(block.max(), -block.min()) > LARGEST:
                raise CheckpointError(f"{tensor.name} has weights too large for float16.", "Use another checkpoint.")
            codes, scale, bias = coded(block.reshape(len(block), -1, coding.group), coding)
            words[start:end] = pack(codes.reshape(block.shape), coding.bits)
            scales[start:end], biases[start:end] = scale, bias
            off = codes * scale[..., None] + bias[..., None]
            off -= block.reshape(off.shape)
            error += float(np.vdot(off, off))
            weights += float(np.vdot(block, block))
        self.errors.note(tensor.name, error, weights)
        return {"weight": words.data, "scales": scales.data, "biases": biases.data}


def row_blocks(tensor: LazyTensor) -> Iterator[tuple[int, F32]]:
    """The first row and the float32 values [n, K] of some rows at a time, N and what is before it taken as one.

    Raises:
        CheckpointError: A number is not finite.
    """
    rows, columns = prod(tensor.shape[:-1]), tensor.shape[-1]
    width = columns * ITEM_BYTES[tensor.dtype]
    whole = None if tensor.part is not None else memoryview(tensor.read()).cast("B")
    step = max(1, BLOCK // columns)
    for start in range(0, rows, step):
        end = min(start + step, rows)
        if whole is not None:
            data: Buffer = whole[start * width : end * width]
        else:
            assert tensor.part is not None
            data = tensor.part(start * width, end * width)
        block = floats(data, tensor.dtype).reshape(-1, columns)
        finite = np.isfinite(block).all(axis=1)
        if not finite.all():
            row = start + int(np.argmin(finite))
            raise CheckpointError(f"{tensor.name} has a number that is not finite in row {row}.", "Use another file.")
        yield start, block


def floats(data: Buffer, dtype: str) -> F32:
    """Raw bytes as float32."""
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, {"F32": "<f4", "F16": "<f2"}[dtype]).astype(np.float32)


def coded(grouped: F32, coding: Coding) -> tuple[U8, F32, F32]:
    """Codes [N, G, g] of weights [N, G, g], and the scales and biases [N, G], which have float16 values."""
    if coding.bits == 8:
        return _eight(grouped)
    return _refined(grouped) if coding.refine else _nearest(grouped)


def _half(values: Array) -> F32:
    with np.errstate(over="ignore"):
        return values.astype(np.float16).astype(np.float32)


def _eight(grouped: F32) -> tuple[U8, F32, F32]:
    scale = _half(np.abs(grouped).max(-1) / 127.0)
    codes = np.rint(grouped * _inverse(scale)[..., None])
    np.clip(codes, -127, 127, out=codes)
    codes += 128.0
    return codes.astype(np.uint8), scale, scale * np.float32(-128.0)


def _inverse(scale: F32) -> F32:
    """1 / scale, 0 where there is none."""
    return np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)


def _nearest(grouped: F32) -> tuple[U8, F32, F32]:
    low = _half(grouped.min(-1))
    scale = _half((grouped.max(-1) - low) / 15.0)
    codes = np.rint((grouped - low[..., None]) * _inverse(scale)[..., None])
    return np.clip(codes, 0, 15).astype(np.uint8), scale, low


def _refined(grouped: F32) -> tuple[U8, F32, F32]:
    best = _nearest(grouped)
    least = _squares(grouped, *best)
    low, high = grouped.min(-1, keepdims=True), grouped.max(-1, keepdims=True)
    mean = grouped.mean(-1, keepdims=True)
    for share in SHARES:
        scale = np.maximum((high - low) * np.float32(share / 15.0), np.float32(TINY))
        bias = (high + low) / 2 - np.float32(7.5) * scale
        for _ in range(TURNS):
            codes = np.clip(np.rint((grouped - bias) / scale), 0, 15)
            around = codes - codes.mean(-1, keepdims=True)
            spread = np.square(around).sum(-1, keepdims=True)
            fit = (around * (grouped - mean)).sum(-1, keepdims=True) / np.maximum(spread, np.float32(TINY))
            scale = _half(np.where(spread > 0, fit, 0.0))
            bias = _half(mean - scale * codes.mean(-1, keepdims=True))
            found = codes.astype(np.uint8), scale[..., 0], bias[..., 0]
            squares = _squares(grouped, *found)
            better = squares < least
            least = np.where(better, squares, least)
            best = (
                np.where(better[..., None], found[0], best[0]),
                np.where(better, found[1], best[1]),
                np.where(better, found[2], best[2]),
            )
            scale = np.maximum(scale, np.float32(TINY))
    return best


def _squares(grouped: F32, codes: U8, scale: F32, bias: F32) -> F32:
    off = codes * scale[..., None] + bias[..., None] - grouped
    squares: F32 = np.square(off).sum(-1)
    return squares
