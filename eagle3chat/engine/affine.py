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
from typing import Literal

import numpy as np
import numpy.typing as npt

GROUP = 32
U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
F16 = npt.NDArray[np.float16]
F32 = npt.NDArray[np.float32]
BlockKind = Literal["Q4_0", "Q4_1", "Q8_0"]
BLOCK_BYTES = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}


class NotExactError(ValueError):
    """The blocks have no exact affine form with float16 parameters."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """A GGUF matrix [N, K] as it lies in the file: uint8 rows [N, K/32 * block bytes]."""

    kind: BlockKind
    rows: U8

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return 8 if self.kind == "Q8_0" else 4

    @property
    def shape(self) -> tuple[int, int]:
        """N and K."""
        return len(self.rows), self.rows.shape[1] // BLOCK_BYTES[self.kind] * GROUP

    def words(self) -> U32:
        """[N, K*bits/32], as `pack` makes them."""
        octets = self._bytes()[:, :, (4 if self.kind == "Q4_1" else 2) :]
        if self.kind == "Q8_0":
            return pack((octets ^ np.uint8(0x80)).reshape(self.shape), 8)
        codes = np.empty((*octets.shape[:2], GROUP), np.uint8)
        codes[:, :, :16] = octets & 15
        codes[:, :, 16:] = octets >> 4
        return pack(codes.reshape(self.shape), 4)

    def scales(self) -> F16:
        """[N, K/32]."""
        return self._halves(0)

    def biases(self) -> F16:
        """[N, K/32].

        Raises:
            NotExactError: A bias does not fit float16.
        """
        if self.kind == "Q4_1":
            return self._halves(2)
        return _times(self._halves(0), -8.0 if self.kind == "Q4_0" else -128.0)

    def _bytes(self) -> U8:
        return self.rows.reshape(len(self.rows), -1, BLOCK_BYTES[self.kind])

    def _halves(self, at: int) -> F16:
        """The float16 at byte `at` of every block."""
        return np.ascontiguousarray(self._bytes()[:, :, at : at + 2]).view("<f2")[:, :, 0]


def pack(codes: U8, bits: int) -> U32:
    """Codes [N, K] of 2 to 8 bits as little-endian words [N, K*bits/32], first column in the lowest bits."""
    assert 2 <= bits <= 8, bits
    if bits == 8:
        octets = codes
    elif bits == 4:
        octets = codes[:, 0::2] | (codes[:, 1::2] << np.uint8(4))
    else:
        stream = np.unpackbits(codes[..., None], axis=2, bitorder="little")[:, :, :bits]
        octets = np.packbits(stream.reshape(len(codes), -1), axis=1, bitorder="little")
    return np.ascontiguousarray(octets).view("<u4")


def unpack(words: U32, bits: int) -> U8:
    """The codes [N, K] in words [N, K*bits/32]; the inverse of `pack`."""
    assert 2 <= bits <= 8, bits
    octets = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return octets
    if bits != 4:
        stream = np.unpackbits(octets, axis=1, bitorder="little").reshape(len(octets), -1, bits)
        return np.packbits(stream, axis=2, bitorder="little")[:, :, 0]
    codes = np.empty((octets.shape[0], 2 * octets.shape[1]), np.uint8)
    codes[:, 0::2] = octets & 15
    codes[:, 1::2] = octets >> 4
    return codes


def dequantized(words: U32, scales: F16 | F32, biases: F16 | F32, bits: int) -> F32:
    """scales * u + biases [N, K], each operation rounded to float32."""
    group = unpack(words, bits).shape[1] // scales.shape[1]
    wide_scales = np.repeat(scales.astype(np.float32), group, axis=1)
    return wide_scales * unpack(words, bits) + np.repeat(biases.astype(np.float32), group, axis=1)


def _times(scales: F16, factor: float) -> F16:
    wide = scales.astype(np.float32) * np.float32(factor)
    with np.errstate(over="ignore"):
        product = wide.astype(np.float16)
    if not np.array_equal(product.astype(np.float32), wide):
        raise NotExactError(f"a scale of {float(np.abs(scales).max())} times {factor} does not fit float16")
    return product
