"""More of GGUF's block formats to MLX affine form, exactly, with float32 parameters: w = scales * u + biases.

    Q5_0   22 bytes: f16 d, u32 high bits, 16 bytes                w = d * (u - 16)
    Q5_1   24 bytes: f16 d, f16 m, u32 high bits, 16 bytes         w = d * u + m
    Q4_K  144 bytes: f16 d, f16 m, 12 bytes of steps, 128 bytes    w = d * s_j * u - m * t_j, 8 groups j of 32
    Q5_K  176 bytes: the same with 32 bytes of high bits before the 128

Steps s and t have 6 bits, and a float16 times 6 bits needs 17. Other formats (groups of 16, uneven levels) have no
affine form. Source: ggml's block definitions. Knows no file and no name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from eagle3chat.engine.affine import F32, U8, pack
from eagle3chat.engine.affine_source import Codes

GROUP = 32
Array = npt.NDArray[Any]


class _Layout(NamedTuple):
    """Bytes of a block, its weights, and bits of a code."""

    size: int
    weights: int
    bits: int


LAYOUTS: Mapping[str, _Layout] = {
    "Q5_0": _Layout(22, 32, 5),
    "Q5_1": _Layout(24, 32, 5),
    "Q4_K": _Layout(144, 256, 4),
    "Q5_K": _Layout(176, 256, 5),
}


def block_codes(kind: str, rows: U8, order: npt.NDArray[np.intp] | None) -> Codes:
    """A matrix whose blocks are of a kind in LAYOUTS.

    Args:
        rows: [N, K / weights * size], as in the file.
        order: The row of `rows` that each row of the result is; None: the same.
    """
    layout = LAYOUTS[kind]
    shape = len(rows), rows.shape[1] // layout.size * layout.weights
    opened = _opened_k if kind.endswith("_K") else _opened_5

    def part(index: int) -> Array:
        chosen = rows if order is None else rows[order]
        return opened(kind, chosen.reshape(len(chosen), -1, layout.size))[index].reshape(shape[0], -1)

    return Codes(
        shape=shape,
        group=GROUP,
        bits=layout.bits,
        words=lambda: pack(part(0), layout.bits),
        scales=lambda: part(1),
        biases=lambda: part(2),
        scale_type="F32",
        bias_type="F32",
    )


def _halves(blocks: U8, at: int) -> F32:
    """The float16 at a byte of every block, [N, B]."""
    return np.ascontiguousarray(blocks[:, :, at : at + 2]).view("<f2")[:, :, 0].astype(np.float32)


def _opened_5(kind: str, blocks: U8) -> tuple[U8, F32, F32]:
    """Codes [N, B, 32], scales and biases [N, B]."""
    start = 2 if kind == "Q5_0" else 4
    high = np.unpackbits(blocks[:, :, start : start + 4], axis=2, bitorder="little")
    low = blocks[:, :, start + 4 :]
    codes = np.concatenate((low & 15, low >> 4), axis=2) | (high << np.uint8(4))
    scales = _halves(blocks, 0)
    return codes, scales, np.float32(-16.0) * scales if kind == "Q5_0" else _halves(blocks, 2)


def _opened_k(kind: str, blocks: U8) -> tuple[U8, F32, F32]:
    """Codes [N, B, 8, 32], scales and biases [N, B, 8]."""
    steps = blocks[:, :, 4:16]
    first, second, third = steps[:, :, :4], steps[:, :, 4:8], steps[:, :, 8:]
    scale = np.concatenate((first & 63, (third & 15) | (first >> 6 << 4)), axis=2)
    least = np.concatenate((second & 63, (third >> 4) | (second >> 6 << 4)), axis=2)
    low = blocks[:, :, -128:].reshape(*blocks.shape[:2], 4, 32)
    codes = np.stack((low & 15, low >> 4), axis=3).reshape(*blocks.shape[:2], 8, 32)  # groups in pairs share bytes
    if kind == "Q5_K":
        high = np.unpackbits(blocks[:, :, 16:48, None], axis=3, bitorder="little")  # bit j: of group j
        codes = codes | (high.swapaxes(2, 3) << np.uint8(4))
    return codes, _halves(blocks, 0)[..., None] * scale, -(_halves(blocks, 2)[..., None] * least)
