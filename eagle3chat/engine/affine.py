"""GGUF blocks to MLX affine form, exactly: w = scales * u + biases, 32 columns a group, float16 parameters.

    Q4_0  18 bytes: f16 d, 16 bytes            w = d * (u - 8)      scales d, biases -8 d
    Q4_1  20 bytes: f16 d, f16 m, 16 bytes     w = d * u + m        scales d, biases m
    Q8_0  34 bytes: f16 d, 32 int8             w = d * q            u = q + 128, scales d, biases -128 d

Byte j of a 4-bit block holds column j in its low and column j + 16 in its high half; MLX wants column 2j low
and 2j + 1 high, so codes are repacked. Multiplying by 8 or 128 shifts the exponent: exact unless it overflows,
which is refused. Formats: ggml's block definitions and MLX's quantised matrices. Knows no file and no name.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

GROUP = 32
U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
F16 = npt.NDArray[np.float16]


class NotExactError(ValueError):
    """The blocks have no exact affine form with float16 parameters."""


@dataclass(frozen=True, slots=True)
class Affine:
    """A quantised matrix [N, K]: words [N, K*bits/32], scales and biases [N, K/32]."""

    bits: int
    words: U32
    scales: F16
    biases: F16


def pack(codes: U8, bits: int) -> U32:
    """Codes [N, K] of 4 or 8 bits as little-endian words [N, K*bits/32], first column in the lowest bits."""
    assert bits in (4, 8), bits
    octets = codes if bits == 8 else codes[:, 0::2] | (codes[:, 1::2] << 4)
    return np.ascontiguousarray(octets).view("<u4")


def unpack(words: U32, bits: int) -> U8:
    """The codes [N, K] in words [N, K*bits/32]; the inverse of `pack`."""
    assert bits in (4, 8), bits
    octets = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return octets
    codes = np.empty((octets.shape[0], 2 * octets.shape[1]), np.uint8)
    codes[:, 0::2] = octets & 15
    codes[:, 1::2] = octets >> 4
    return codes


def dequantized(matrix: Affine) -> npt.NDArray[np.float32]:
    """scales * u + biases [N, K], each operation rounded to float32."""
    codes = unpack(matrix.words, matrix.bits).astype(np.float32)
    scales = np.repeat(matrix.scales.astype(np.float32), GROUP, axis=1)
    biases = np.repeat(matrix.biases.astype(np.float32), GROUP, axis=1)
    return scales * codes + biases


def from_q4_0(rows: U8) -> Affine:
    """Rows [N, K/32*18] of Q4_0 blocks."""
    blocks = rows.reshape(len(rows), -1, 18)
    scales = _halves(blocks, 0)
    return Affine(4, _repacked(blocks[:, :, 2:]), scales, _times(scales, -8.0))


def from_q4_1(rows: U8) -> Affine:
    """Rows [N, K/32*20] of Q4_1 blocks."""
    blocks = rows.reshape(len(rows), -1, 20)
    return Affine(4, _repacked(blocks[:, :, 4:]), _halves(blocks, 0), _halves(blocks, 2))


def from_q8_0(rows: U8) -> Affine:
    """Rows [N, K/32*34] of Q8_0 blocks."""
    blocks = rows.reshape(len(rows), -1, 34)
    scales = _halves(blocks, 0)
    codes = blocks[:, :, 2:] ^ np.uint8(0x80)
    return Affine(8, pack(codes.reshape(len(rows), -1), 8), scales, _times(scales, -128.0))


def _halves(blocks: U8, at: int) -> F16:
    """The float16 at byte `at` of every block [N, K/32]."""
    return np.ascontiguousarray(blocks[:, :, at : at + 2]).view("<f2")[:, :, 0]


def _times(scales: F16, factor: float) -> F16:
    wide = scales.astype(np.float32) * np.float32(factor)
    with np.errstate(over="ignore"):
        product = wide.astype(np.float16)
    if not np.array_equal(product.astype(np.float32), wide):
        raise NotExactError(f"a scale of {float(np.abs(scales).max())} times {factor} does not fit float16")
    return product


def _repacked(octets: U8) -> U32:
    """Code bytes [N, K/32, 16] of GGUF's order as words [N, K/8] of MLX's."""
    rows, blocks, _ = octets.shape
    codes = np.empty((rows, blocks, GROUP), np.uint8)
    codes[:, :, :16] = octets & 15
    codes[:, :, 16:] = octets >> 4
    return pack(codes.reshape(rows, -1), 4)
