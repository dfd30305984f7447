"""Which embedding a draft gets: trained, copied, stale or noise, beside a dense and a quantised target."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from draft_layouts import DRAFT, MASK, TARGET, VOCAB, WIDTH, Layout, flat, lazy, midlayer, target_rows
from tiny import quantize

from eagle3chat.engine.affine import dequantized
from eagle3chat.engine.checkpoint import DraftSource, TargetSource, open_draft
from eagle3chat.engine.config import Quantization
from eagle3chat.engine.draft_embedding import TargetRows, rows_of
from eagle3chat.engine.errors import CheckpointError
from eagle3chat.engine.tensor_file import LazyTensor

Array = npt.NDArray[np.float32]
NAME = "embed_tokens.weight"


def _noise(shape: tuple[int, int] = (VOCAB, WIDTH)) -> Array:
    return (np.random.default_rng(3).standard_normal(shape) * 0.2).astype(np.float32)


def _target(rows: Array, dtype: str = "F32", bits: int = 0) -> TargetRows:
    """The embedding of a target, dense or in MLX affine form."""
    quantization = None
    tensors = [lazy("model.embed_tokens.weight", rows, dtype)]
    if bits:
        words, scales, biases = quantize(rows, bits)
        quantization = Quantization(bits=4, overrides=(("model.embed_tokens", 32, bits),))
        tensors = [LazyTensor("model.embed_tokens.weight", "U32", words.shape, words.tobytes)]
        for name, part in (("scales", scales), ("biases", biases)):
            tensors.append(LazyTensor(f"model.embed_tokens.{name}", "F16", part.shape, part.tobytes))
    return rows_of(TargetSource("t", TARGET, quantization, tuple(tensors), {}, b"", {}, "", -1, (), ()))


def _open(
    directory: Path, own: Array, rows: TargetRows | None, wanted: bool | None = None, dtype: str = "F32", **more: Any
) -> DraftSource:
    layout = Layout(DRAFT, flat(DRAFT, **more), midlayer, MASK | {NAME: own}, (), dtype)
    return open_draft(layout.write(directory / "draft"), TARGET, own_embedding=wanted, rows=rows)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize(("form", "bits"), [("F32", 0), ("F16", 0), ("BF16", 0), ("F32", 8), ("F32", 4)])
@pytest.mark.parametrize("frozen", [{}, {"embed_requires_grad": False}])
def test_a_copy_gives_way_to_the_target(
    tmp_path: Path, dtype: str, form: str, bits: int, frozen: dict[str, bool]
) -> None:
    source = _open(tmp_path, target_rows(), _target(target_rows() * 1.001, form, bits), None, dtype, **frozen)
    assert not source.config.own_embedding
    assert len(source.remarks) == 1  # the taps
    assert all(tensor.name != NAME for tensor in source.tensors)


@pytest.mark.parametrize("bits", [0, 4, 8])
def test_noise_that_was_frozen_gives_way_and_is_told(tmp_path: Path, bits: int) -> None:
    source = _open(tmp_path, _noise(), _target(target_rows(), bits=bits), embed_requires_grad=False)
    assert not source.config.own_embedding
    assert source.remarks[1].startswith(f"draft: {NAME} differs from the target's in {VOCAB} of {VOCAB} rows, though")
    assert "--own-embedding" in source.remarks[1]


@pytest.mark.parametrize("bits", [0, 4])
def test_noise_without_a_word_is_the_users_choice(tmp_path: Path, bits: int) -> None:
    rows = _target(target_rows(), bits=bits)
    with pytest.raises(CheckpointError, match=rf"draft: {NAME} differs .* in 48 of 48 rows, and its config") as caught:
        _open(tmp_path, _noise(), rows)
    assert caught.value.fix == "Choose with --own-embedding or --no-own-embedding."
    path = tmp_path / "draft"
    assert open_draft(path, TARGET, own_embedding=True, rows=rows).config.own_embedding
    assert not open_draft(path, TARGET, own_embedding=False, rows=rows).config.own_embedding


def test_one_row_is_enough(tmp_path: Path) -> None:
    """A table that was trained a little, or never filled in some place."""
    for place, value in ((5, 0.05), (7, np.nan)):
        rows = target_rows().copy()
        rows[place] += value
        with pytest.raises(CheckpointError, match=r"in 1 of 48 rows"):
            _open(tmp_path / str(place), rows, _target(target_rows()))


def test_a_trained_embedding_stays(tmp_path: Path) -> None:
    source = _open(tmp_path, _noise(), _target(target_rows()), embed_requires_grad=True)
    assert source.config.own_embedding
    assert [t.read() for t in source.tensors if t.name == NAME] == [_noise().tobytes()]


def test_a_table_that_does_not_fit(tmp_path: Path) -> None:
    rows = _target(target_rows())
    with pytest.raises(CheckpointError, match=rf"{NAME} is F32 \[50, 32\], and no copy of the target's 48 rows"):
        _open(tmp_path / "a", _noise((50, WIDTH)), rows)
    assert not open_draft(tmp_path / "a" / "draft", TARGET, own_embedding=False, rows=rows).config.own_embedding
    with pytest.raises(CheckpointError, match=rf"the tensor {NAME} has the shape \[50, 32\], not \[48, 32\]"):
        open_draft(tmp_path / "a" / "draft", TARGET, own_embedding=True, rows=rows)


def test_none_where_one_is_needed(tmp_path: Path) -> None:
    small = dataclasses.replace(DRAFT, hidden_size=24)
    layout = Layout(small, flat(small, target_hidden_size=WIDTH, head_dim=8), midlayer, MASK)
    with pytest.raises(CheckpointError, match=rf"{NAME} is missing, and the target's rows have 32 columns"):
        open_draft(layout.write(tmp_path / "a"), TARGET)
    with pytest.raises(CheckpointError, match=rf"{NAME} is missing, and --own-embedding asks for it"):
        open_draft(Layout(DRAFT, flat(DRAFT), midlayer, MASK).write(tmp_path / "b"), TARGET, own_embedding=True)
    other = dataclasses.replace(layout, extra=MASK | {NAME: _noise((VOCAB, 24))})
    with pytest.raises(CheckpointError, match=r"its embedding has 24 columns, the target's 32"):
        open_draft(other.write(tmp_path / "c"), TARGET, own_embedding=False)


@pytest.mark.parametrize("bits", [4, 8])
def test_rows_of_an_affine_table(bits: int) -> None:
    words, scales, biases = quantize(target_rows(), bits)
    whole = dequantized(words, scales, biases, bits)
    assert np.array_equal(_target(target_rows(), bits=bits).read([7, 0, 47]), whole[[7, 0, 47]])
