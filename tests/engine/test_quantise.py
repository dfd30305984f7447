"""Quantising at export: how far weights move, what MLX makes of the result, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from eagle3chat.engine import quantise
from eagle3chat.engine.affine import pack, unpack
from eagle3chat.engine.errors import CheckpointError
from eagle3chat.engine.quantise import Coding, Errors, coded, quantised
from eagle3chat.engine.recoding import opened
from eagle3chat.engine.tensor_file import LazyTensor

Array = npt.NDArray[Any]
CODINGS = [Coding(4, 32), Coding(4, 64), Coding(4, 128, refine=True), Coding(8, 32), Coding(8, 128)]


def weights(*shape: int, seed: int = 0) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * 0.05).astype(np.float32)


def lazy(values: Array, dtype: str = "F32", parts: bool = True) -> LazyTensor:
    data = values.astype("<f4").tobytes()
    if dtype == "BF16":
        data = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    elif dtype == "F16":
        data = values.astype("<f2").tobytes()
    return LazyTensor("m.weight", dtype, values.shape, lambda: data, (lambda a, b: data[a:b]) if parts else None)


def arrays(made: tuple[LazyTensor, ...]) -> tuple[Array, Array, Array]:
    words, scales, biases = (
        np.frombuffer(bytes(memoryview(t.read())), "<u4" if t.dtype == "U32" else "<f2").reshape(t.shape) for t in made
    )
    return words, scales, biases


def reckoned(made: tuple[LazyTensor, ...], coding: Coding) -> Array:
    """The dense values in float64, for matrices."""
    words, scales, biases = arrays(made)
    stream = np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little").reshape(len(words), -1, coding.bits)
    codes = (stream * 2.0 ** np.arange(coding.bits)).sum(-1)
    return np.repeat(scales.astype(float), coding.group, 1) * codes + np.repeat(biases.astype(float), coding.group, 1)


@pytest.mark.parametrize("coding", CODINGS, ids=str)
def test_mlx_opens_what_is_made(coding: Coding) -> None:
    mx = pytest.importorskip("mlx.core")
    values = weights(6, 256)
    made = quantised(lazy(values), coding, Errors())
    words, scales, biases = (mx.array(part) for part in arrays(made))
    wide = [scales.astype(mx.float32), biases.astype(mx.float32)]
    ours = mx.dequantize(words, *wide, group_size=coding.group, bits=coding.bits)
    np.testing.assert_allclose(np.array(ours), reckoned(made, coding), rtol=1e-6, atol=1e-8)
    theirs = mx.quantize(mx.array(values), group_size=coding.group, bits=coding.bits)
    theirs = mx.dequantize(*theirs, group_size=coding.group, bits=coding.bits)
    error, other = (np.square(np.array(made) - values).sum() for made in (ours, theirs))
    assert error < other * (1.5 if coding.bits == 8 else 1.0)  # 8 bits: ours are symmetric


@pytest.mark.parametrize("bits", [4, 8])
def test_a_weight_moves_by_half_a_step(bits: int) -> None:
    values = weights(5, 96, seed=1)
    made = quantised(lazy(values), Coding(bits, 32), Errors())
    scales = np.repeat(arrays(made)[1].astype(float), 32, 1)
    off = np.abs(reckoned(made, Coding(bits, 32)) - values)
    # The ends may lie outside by what float16 takes from the scale and the bias.
    assert (off <= scales * (0.5 + 15 * 2**-11 * (1 if bits == 4 else 8)) + 2**-11 * np.abs(values).max()).all()
    assert off.max() > scales.max() * 0.3


def test_refining_never_costs_a_group_anything() -> None:
    values = weights(64, 128, seed=2)
    values[::7, ::11] *= 6.0  # what few weights reach
    grouped = values.reshape(64, -1, 32)

    def squares(refine: bool) -> Array:
        codes, scales, biases = coded(grouped, Coding(4, 32, refine))
        return np.square(codes * scales[..., None] + biases[..., None] - grouped).sum(-1)

    plain, refined = squares(False), squares(True)
    assert (refined <= plain).all()
    assert refined.sum() < 0.9 * plain.sum()


def test_groups_of_one_value_are_exact() -> None:
    values = np.repeat(np.array([[0.0, 0.5, -0.25]], np.float32), 32, 1)
    for coding in (Coding(4, 32), Coding(4, 32, refine=True)):
        assert np.array_equal(reckoned(quantised(lazy(values), coding, Errors()), coding), values)
    zeros = np.zeros((2, 32), np.float32)
    assert not reckoned(quantised(lazy(zeros), Coding(8, 32), Errors()), Coding(8, 32)).any()


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_blocks_and_stacks_make_no_difference(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = (weights(3, 10, 64, seed=3).view(np.uint32) & 0xFFFF0000).view(np.float32)  # fits bfloat16
    flat = [bytes(memoryview(t.read())) for t in quantised(lazy(values.reshape(30, 64), dtype), Coding(), Errors())]
    monkeypatch.setattr(quantise, "BLOCK", 64 * 7)
    for parts in (True, False):
        stack = quantised(lazy(values, dtype, parts), Coding(), Errors())
        assert [t.shape for t in stack] == [(3, 10, 8), (3, 10, 2), (3, 10, 2)]
        assert [bytes(memoryview(t.read())) for t in stack] == flat


def test_the_error_is_the_measured_one() -> None:
    values = weights(8, 64, seed=4)
    errors = Errors()
    made = quantised(lazy(values), Coding(4, 32), errors)
    off = reckoned(made, Coding(4, 32)) - values
    relative = np.linalg.norm(off) / np.linalg.norm(values)
    assert str(errors) == f"relative error {relative:.3%}, at most {relative:.3%} (m)"
    errors.note("n.weight", 0.0, 1.0)
    assert "(m)" in str(errors)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_none_are_named(bad: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantise, "BLOCK", 64)
    values = weights(9, 32)
    values[7, 3] = bad
    with pytest.raises(CheckpointError, match=r"m\.weight has a number that is not finite in row 7"):
        quantised(lazy(values), Coding(), Errors())[0].read()


def test_weights_beyond_float16_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"m\.weight has weights too large for float16"):
        quantised(lazy(weights(2, 32) * 1e8), Coding(), Errors())[0].read()


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_packing_at_every_width(bits: int) -> None:
    mx = pytest.importorskip("mlx.core")
    codes = np.random.default_rng(bits).integers(0, 2**bits, (4, 64), np.uint8)
    words = pack(codes, bits)
    assert np.array_equal(unpack(words, bits), codes)
    ones, zeros = mx.ones((4, 2)), mx.zeros((4, 2))
    assert np.array_equal(np.array(mx.dequantize(mx.array(words), ones, zeros, group_size=32, bits=bits)), codes)
    scales, biases = weights(4, 2, seed=5), weights(4, 2, seed=6)
    parts = [
        LazyTensor("m.weight", "U32", words.shape, words.tobytes),
        LazyTensor("m.scales", "F32", scales.shape, scales.tobytes),
        LazyTensor("m.biases", "F32", biases.shape, biases.tobytes, lambda a, b: biases.tobytes()[a:b]),
    ]
    dense = opened(*parts, bits)
    theirs = mx.dequantize(mx.array(words), mx.array(scales), mx.array(biases), group_size=32, bits=bits)
    made = np.frombuffer(dense.rows([2, 3]), "<f4").reshape(2, 64)
    np.testing.assert_allclose(made, np.array(theirs)[2:], rtol=1e-6, atol=1e-7)
