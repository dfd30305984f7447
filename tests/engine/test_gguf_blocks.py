"""GGUF blocks by hand: the formulas, the nibble order, and the gguf package's own dequantisation."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from eagle3chat.engine.affine import BlockKind, Blocks, NotExactError, dequantized, pack, unpack
from eagle3chat.engine.config import Rope
from eagle3chat.engine.gguf_source import llama3_divisors, row_order


def _half(value: float) -> bytes:
    return struct.pack("<e", value)


def _rows(*blocks: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(b"".join(blocks), np.uint8).reshape(1, -1)


def _values(blocks: Blocks) -> npt.NDArray[np.float32]:
    return dequantized(blocks.words(), blocks.scales(), blocks.biases(), blocks.bits)


def test_q4_1_by_hand() -> None:
    nibbles = bytes(0x11 * i for i in range(16))  # code i in columns i and i + 16
    blocks = Blocks("Q4_1", _rows(_half(0.5) + _half(-2.0) + nibbles))
    assert blocks.shape == (1, 32)
    assert [hex(word) for word in blocks.words()[0]] == ["0x76543210", "0xfedcba98"] * 2
    assert _values(blocks)[0].tolist() == [0.5 * i - 2.0 for i in range(16)] * 2


def test_q4_0_by_hand_with_a_negative_scale() -> None:
    nibbles = bytes([0x13, 0x9E, *[0x88] * 14])
    blocks = Blocks("Q4_0", _rows(_half(-0.25) + nibbles))
    values = _values(blocks)[0]
    assert blocks.biases()[0, 0] == 2.0
    assert {i: float(values[i]) for i in (0, 1, 2, 16, 17)} == {0: 1.25, 1: -1.5, 2: 0.0, 16: 1.75, 17: -0.25}


def test_q8_0_by_hand() -> None:
    codes = np.array([-128, -1, 0, 1, 127, *range(27)], np.int8)
    blocks = Blocks("Q8_0", _rows(_half(-0.5) + codes.tobytes()))
    assert unpack(blocks.words(), 8)[0, :5].tolist() == [0, 127, 128, 129, 255]
    assert _values(blocks)[0].tolist() == (codes.astype(np.float32) * -0.5).tolist()


@pytest.mark.parametrize(("kind", "parameters"), [("Q4_0", 1), ("Q4_1", 2), ("Q8_0", 1)])
def test_random_blocks_equal_the_gguf_package(kind: BlockKind, parameters: int) -> None:
    rng = np.random.default_rng(3)
    size = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}[kind]
    raw = rng.integers(0, 256, (48, 5, size), dtype=np.uint8)
    scales = (rng.standard_normal((48, 5, parameters)) * 10.0 ** rng.integers(-6, 2, (48, 5, 1))).astype("<f2")
    raw[:, :, : 2 * parameters] = scales.view(np.uint8)
    rows = raw.reshape(48, -1)
    assert (scales < 0).mean() > 0.3  # negative ones are in
    assert np.array_equal(_values(Blocks(kind, rows)), dequantize(rows, GGMLQuantizationType[kind]))


@pytest.mark.parametrize(("kind", "scale"), [("Q4_0", 10000.0), ("Q8_0", 600.0)])
def test_a_bias_that_overflows_float16_is_refused(kind: BlockKind, scale: float) -> None:
    blocks = Blocks(kind, _rows(_half(scale) + bytes({"Q4_0": 16, "Q8_0": 32}[kind])))
    with pytest.raises(NotExactError, match="does not fit float16"):
        blocks.biases()


@pytest.mark.parametrize("bits", [4, 8])
def test_unpack_undoes_pack(bits: int) -> None:
    codes = np.random.default_rng(0).integers(0, 2**bits, (3, 64), dtype=np.uint8)
    assert np.array_equal(unpack(pack(codes, bits), bits), codes)
    assert pack(codes, bits)[0, 0] & (2**bits - 1) == codes[0, 0]


def test_row_order_undoes_the_converter() -> None:
    heads, head_dim = 3, 8
    rows = np.arange(heads * head_dim)
    # The converter's own step: split each head in halves and interleave them.
    stored = rows.reshape(heads, 2, head_dim // 2).swapaxes(1, 2).reshape(-1)
    assert np.array_equal(stored[row_order(heads, head_dim)], rows)
    for head in range(heads):  # stored row h*d + 2i + p is row h*d + p*d/2 + i
        for i in range(head_dim // 2):
            for p in (0, 1):
                assert stored[head * head_dim + 2 * i + p] == head * head_dim + p * head_dim // 2 + i


def test_llama3_divisors_keep_the_fast_and_stretch_the_slow() -> None:
    rope = Rope("llama3", 500000.0, 32.0, 1.0, 4.0, 8192)
    divisors = llama3_divisors(rope, 64)
    assert divisors.shape == (32,)
    assert divisors[0] == 1.0
    assert divisors[-1] == 32.0
    assert (np.diff(divisors) >= 0).all()
    # Pair 15 turns 8192 * 500000**(-30/64) / 2 pi = 2.7777 times in the original context: between 1 and 4.
    smooth = (8192 * 500000.0 ** (-30 / 64) / (2 * np.pi) - 1) / 3
    assert divisors[15] == pytest.approx(1 / ((1 - smooth) / 32 + smooth))
