"""Taps on MLX: the streams of models computed by hand, and the ways in which a tap could lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

mx = pytest.importorskip("mlx.core")

import mlx.nn as nn  # noqa: E402
import numpy as np  # noqa: E402
from families import VOCAB  # noqa: E402
from mlx.utils import tree_flatten  # noqa: E402
from mlx_lm import utils  # noqa: E402
from mlx_lm.models.base import create_attention_mask  # noqa: E402
from mlx_targets import family_bundle, ids, opened  # noqa: E402

from eagle3chat.engine.errors import BackendError  # noqa: E402
from eagle3chat.engine.mlx_taps import Taps  # noqa: E402

TOKENS = [int(token) for token in np.random.default_rng(2).integers(3, VOCAB, 13)]


def by_hand_llama(model: Any, tokens: list[int]) -> list[mx.array]:
    """The stream at boundaries 0..N, layer after layer, without a cache."""
    x = model.model.embed_tokens(ids(tokens)[None])
    streams = [x]
    for layer in model.model.layers:
        x = layer(x, create_attention_mask(x), None)
        streams.append(x)
    return streams


def by_hand_gemma4(model: Any, tokens: list[int]) -> list[mx.array]:
    inner = model.model
    x = inner.embed_tokens(ids(tokens)[None]) * inner.embed_scale
    streams = [x]
    for layer in inner.layers:
        sliding = layer.layer_type == "sliding_attention"
        mask = create_attention_mask(x, window_size=inner.window_size if sliding else None)
        x, _, _ = layer(x, mask, None)
        streams.append(x)
    return streams


@pytest.mark.parametrize(("family", "by_hand"), [("llama", by_hand_llama), ("gemma4", by_hand_gemma4)])
def test_taps_are_the_streams_of_layers_called_by_hand(family: str, by_hand: Any, tmp_path: Path) -> None:
    bundle = family_bundle(tmp_path, family)
    plain, _ = utils.load_model(bundle.path / "target")
    streams = by_hand(plain, TOKENS)
    count = len(streams)
    assert count == bundle.manifest.target.num_layers + 1
    target = opened(bundle, range(count))
    logits, taps = target(ids(TOKENS))
    wanted = np.concatenate([np.array(stream[0]) for stream in streams], -1)
    np.testing.assert_allclose(np.array(taps), wanted, atol=1e-5 * np.abs(wanted).max())
    # The last boundary lies before the final norm: with norm and head it gives the logits.
    last = taps[:, -target.embed_rows(ids([0])).shape[1] :]
    said = target.head(plain.model.norm(last))
    cap = bundle.manifest.target.family == "gemma4_text"
    said = mx.tanh(said / 30) * 30 if cap else said
    np.testing.assert_allclose(np.array(logits), np.array(said), atol=1e-4)


def test_some_boundaries_in_ascending_order_and_by_several_passes(tmp_path: Path) -> None:
    bundle = family_bundle(tmp_path, "gemma4_e")
    whole = np.array(opened(bundle, range(7))(ids(TOKENS))[1]).reshape(len(TOKENS), 7, -1)
    target = opened(bundle, (0, 2, 6))
    parts = []
    for start, end in ((0, 5), (5, 6), (6, 13)):
        _, taps = target(ids(TOKENS[start:end]))
        target.advance(end - start)
        parts.append(np.array(taps))
    np.testing.assert_allclose(np.concatenate(parts), whole[:, (0, 2, 6)].reshape(len(TOKENS), -1), atol=1e-4)


def test_tapping_changes_neither_logits_nor_parameters_nor_other_models(tmp_path: Path) -> None:
    bundle = family_bundle(tmp_path, "llama")
    plain = opened(bundle)
    names = [name for name, _ in tree_flatten(plain._model.parameters())]
    before, nothing = plain(ids(TOKENS))
    assert nothing is None
    target, other = opened(bundle, (1, 3)), opened(bundle, (0,))
    after, taps = target(ids(TOKENS))
    _, others = other(ids(TOKENS[:2]))
    assert mx.array_equal(before, after)
    assert (taps.shape, others.shape) == ((13, 128), (2, 64))
    assert [name for name, _ in tree_flatten(target._model.parameters())] == names
    assert isinstance(target._model.layers[0], type(plain._model.layers[0]))
    assert type(target._model.layers[1]) is type(plain._model.layers[1])  # boundary 2 is not asked for


class Block(nn.Module):
    """Adds 1; gives a tuple if told so."""

    def __init__(self, paired: bool = False) -> None:
        super().__init__()
        self.paired = paired

    def __call__(self, x: mx.array, mask: Any = None) -> Any:
        return (x + 1, "beside") if self.paired else x + 1


def test_tuples_and_inputs_by_name() -> None:
    layers = [Block(paired=True), Block()]
    taps = Taps(layers, (0, 1, 2))
    out, beside = layers[0](x=mx.zeros((1, 3, 2)), mask=None)
    layers[1](out)
    assert beside == "beside"
    assert taps.take(3).tolist() == [[0, 0, 1, 1, 2, 2]] * 3


def test_what_an_earlier_pass_left_is_not_taken() -> None:
    layers = [Block(), Block()]
    taps = Taps(layers, (1, 2))
    layers[0](mx.zeros((1, 4, 2)))  # this pass fails before the second layer
    taps.clear()
    layers[1](mx.zeros((1, 4, 2)))
    with pytest.raises(ValueError, match="boundary 1"):
        taps.take(4)
    layers[1](layers[0](mx.ones((1, 2, 2))))
    assert taps.take(2).tolist() == [[2, 2, 3, 3]] * 2
    with pytest.raises(ValueError, match="boundary 1"):
        taps.take(2)  # taken already


@pytest.mark.parametrize(
    ("stream", "match"),
    [
        (mx.zeros((1, 3, 2)), r"shape \(1, 3, 2\)"),
        (mx.zeros((2, 4, 2)), r"shape \(2, 4, 2\)"),
        (mx.zeros((4, 1, 4, 2)), r"shape \(4, 1, 4, 2\)"),
        ([mx.zeros((1, 4, 2))], "not to be had"),
    ],
)
def test_a_stream_of_another_form_is_refused(stream: Any, match: str) -> None:
    taps = Taps([Block()], (1,))
    taps.put(1, stream)
    with pytest.raises(ValueError, match=match):
        taps.take(4)


def test_a_layer_that_is_used_twice_is_refused() -> None:
    layer = Block()
    with pytest.raises(ValueError, match="several times"):
        Taps([layer, layer], (1,))
    layers = [Block(), Block()]
    Taps(layers, (1,))
    with pytest.raises(ValueError, match="boundary 1 twice"):
        layers[0](layers[0](mx.zeros((1, 1, 2))))


@pytest.mark.parametrize("boundaries", [(3,), (-1,), (1, 1), (2, 1)])
def test_boundaries_are_ascending_and_within_the_model(boundaries: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError):
        Taps([Block(), Block()], boundaries)


def test_a_model_that_cannot_be_tapped_is_told_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = family_bundle(tmp_path, "llama")
    skips = lambda self, tokens, cache, embeddings: self.norm(self.embed_tokens(tokens))  # noqa: E731
    monkeypatch.setattr("mlx_lm.models.llama.LlamaModel.__call__", skips)
    opened(bundle)  # without a draft nothing is asked of the layers
    with pytest.raises(BackendError, match=r"The model type llama cannot be tapped on MLX: .* boundary 1\.") as caught:
        opened(bundle, (1,))
    assert caught.value.fix == "Use the torch backend for this target, or make a bundle without a draft."
