"""The MLX target: transformers' logits for every family, and rows that do not depend on how they came."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

mx = pytest.importorskip("mlx.core")

import mlx.nn as nn  # noqa: E402
import numpy as np  # noqa: E402
from families import FAMILIES, VOCAB, WINDOW, WINDOWED, family_checkpoint, mxfp4_experts, true_logits  # noqa: E402
from mlx.utils import tree_flatten  # noqa: E402
from mlx_lm.models import llama  # noqa: E402
from mlx_targets import LFM2, TrimmedStock, bundle_of, counted, family_bundle, ids, opened, own_model  # noqa: E402

from eagle3chat.engine import mlx_model, mlx_target  # noqa: E402
from eagle3chat.engine.bundle import open_bundle  # noqa: E402
from eagle3chat.engine.errors import BackendError  # noqa: E402
from eagle3chat.engine.export import export_bundle  # noqa: E402
from eagle3chat.engine.mlx_target import MlxTarget  # noqa: E402

RNG = np.random.default_rng(4)
TOKENS = [int(token) for token in RNG.integers(3, VOCAB, 48)]


def close(found: np.ndarray, wanted: np.ndarray) -> bool:
    """Alike within 1e-5 of the largest logit."""
    return float(np.abs(found - wanted).max()) <= 1e-5 * float(np.abs(wanted).max())


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers_and_of_any_cut_into_passes(family: str, tmp_path: Path) -> None:
    target = opened(family_bundle(tmp_path, family))
    whole = counted(target, TOKENS, [len(TOKENS)])
    np.testing.assert_allclose(whole, true_logits(tmp_path / "source", TOKENS), atol=1e-4)
    assert close(counted(target, TOKENS, [1] * len(TOKENS)), whole)
    assert close(counted(target, TOKENS, [20, 3, 1, 17, 1, 1, 5]), whole)
    assert target.can_rollback
    assert target.why_no_rollback == ""
    assert target.window == (WINDOW if family in WINDOWED else 0)


def rounds(target: MlxTarget, whole: np.ndarray, seed: int) -> bool:
    """Whether right rows stay right in rounds of 1..7 rows, of which 1..7 are kept and the rest were wrong tokens."""
    rng = np.random.default_rng(seed)
    assert target.keep(0)
    while target.rows < len(TOKENS):
        start = target.rows
        right = min(int(rng.integers(1, 8)), len(TOKENS) - start)
        wrong = rng.integers(3, VOCAB, int(rng.integers(0, 8 - right))).tolist() if right < 7 else []
        logits, _ = target(ids([*TOKENS[start : start + right], *wrong]))
        mx.eval(logits, target.cache_arrays())
        target.advance(right)
        if not close(np.array(logits)[:right], whole[start : start + right]):
            return False
        if rng.random() < 0.2 and target.rows > 5:  # an edit: some rows back, then on
            assert target.keep(target.rows - 3)
    return True


@pytest.mark.parametrize("family", ["llama", *WINDOWED])
def test_rows_after_rollbacks_are_those_of_a_fresh_cache(family: str, tmp_path: Path) -> None:
    target = opened(family_bundle(tmp_path, family))
    whole = counted(target, TOKENS, [len(TOKENS)])
    for seed in range(2):
        assert rounds(target, whole, seed)


def test_the_stock_sliding_cache_fails_the_same_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = opened(family_bundle(tmp_path, "gemma4"))
    whole = counted(target, TOKENS, [len(TOKENS)])
    monkeypatch.setattr(mlx_target, "SlidingCache", TrimmedStock)
    assert target.keep(0)  # makes new caches
    assert not all(rounds(target, whole, seed) for seed in range(2))


def test_shared_layers_have_no_cache_of_their_own(tmp_path: Path) -> None:
    target = opened(family_bundle(tmp_path, "gemma4_e"))
    kinds = [type(cache).__name__ for cache in target._caches]
    assert kinds == ["SlidingCache", "FullCache", "SlidingCache"]  # for 6 layers


def test_keep_goes_back_within_the_slack_and_says_when_it_cannot(tmp_path: Path) -> None:
    target = opened(family_bundle(tmp_path, "gemma3"), capacity=600)
    tokens = (TOKENS * 12)[:500]
    whole = counted(target, tokens, [100] * 5)
    assert target.slack == 128
    assert target.keep(500 - 128)
    logits, _ = target(ids(tokens[372:380]))
    assert close(np.array(logits), whole[372:380])
    assert not target.keep(20)
    assert target.rows == 372  # nothing has changed
    assert target.keep(0)
    assert close(counted(target, tokens[:40], [40]), whole[:40])


def test_memory_does_not_grow_with_the_context_in_sliding_layers(tmp_path: Path) -> None:
    changes = {"layer_types": ["sliding_attention"] * 5 + ["full_attention"]}
    target = opened(family_bundle(tmp_path, "gemma4", changes=changes), capacity=1000)
    sizes = {}
    for rows in (300, 600):
        counted(target, (TOKENS * 13)[:rows], [150] * (rows // 150))
        sizes[rows] = [cache.nbytes for cache in target._caches]
    assert sizes[300][:5] == sizes[600][:5]
    assert sizes[300][0] <= (WINDOW - 1 + 2 * target.slack) * 2 * 2 * 16 * 4
    assert sizes[600][5] == 1.5 * sizes[300][5]


def test_capacity_is_the_bound(tmp_path: Path) -> None:
    target = opened(family_bundle(tmp_path, "llama"), capacity=10)
    counted(target, TOKENS[:10], [9, 1])
    with pytest.raises(AssertionError):
        target(ids([5]))
    assert target.cache_arrays()[0].shape[2] == 10


def test_a_pass_evaluates_nothing(tmp_path: Path) -> None:
    target = opened(family_bundle(tmp_path, "gemma4_e"), (0, 3, 6))
    tokens = ids(TOKENS)
    mx.eval(tokens)
    before = mx.get_active_memory()
    logits, taps = target(tokens)
    target.advance(40)
    more, _ = target(tokens[:5])
    assert mx.get_active_memory() - before < 3000  # numbers; the keys of one layer are more
    mx.eval(logits, taps, more)
    assert mx.get_active_memory() - before > logits.nbytes + taps.nbytes + more.nbytes


def test_uncounted_rows_are_dropped_by_the_next_pass(tmp_path: Path) -> None:
    target = opened(family_bundle(tmp_path, "gemma3"))
    counted(target, TOKENS[:20], [20])
    once, _ = target(ids(TOKENS[20:24]))
    again, _ = target(ids(TOKENS[20:24]))
    assert mx.array_equal(once, again)
    assert target.rows == 20
    with pytest.raises(AssertionError):
        target.advance(5)


def test_a_pass_that_failed_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = opened(family_bundle(tmp_path, "llama"), (1, 3))
    counted(target, TOKENS[:20], [20])
    wanted = target(ids(TOKENS[20:24]))
    with monkeypatch.context() as patch:
        patch.setitem(target._model.layers[2], "mlp", _fail)  # after boundary 1
        with pytest.raises(MemoryError):
            target(ids(TOKENS[30:35]))
    for found, whole in zip(target(ids(TOKENS[20:24])), wanted, strict=True):
        assert mx.array_equal(found, whole)


def _fail(x: Any) -> Any:
    raise MemoryError


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_dtype_is_that_of_weights_caches_and_taps(dtype: Any, tmp_path: Path) -> None:
    target = opened(family_bundle(tmp_path, "gemma4_e"), (0, 3, 6), dtype=dtype)
    logits, taps = target(ids(TOKENS))
    assert (logits.dtype, taps.dtype, target.embed_rows(ids([4])).dtype) == (mx.float32, dtype, dtype)
    assert {array.dtype for array in target.cache_arrays()} == {dtype}
    assert {weight.dtype for _, weight in tree_flatten(target._model.parameters())} == {dtype}
    assert target.nbytes < 0.6 * opened(open_bundle(tmp_path / "bundle")).nbytes


LLAMA = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    "quantization",
    [
        {"group_size": 32, "bits": 4, "mode": "affine"},
        {"group_size": 64, "bits": 8, "mode": "affine"},
        {"group_size": 32, "bits": 4, "mode": "mxfp4"},
        {"group_size": 16, "bits": 4, "mode": "nvfp4"},
    ],
)
def test_quantised_checkpoints(quantization: dict[str, Any], tied: bool, tmp_path: Path) -> None:
    model = own_model(tmp_path, LLAMA | {"tie_word_embeddings": tied}, quantization)
    target = opened(bundle_of(tmp_path), (0, 1))
    tokens = [token % 96 for token in TOKENS[:9]]
    logits, taps = target(ids(tokens))
    np.testing.assert_allclose(np.array(logits), np.array(model(ids(tokens)[None])[0]), atol=1e-4)
    packed = model.model.embed_tokens
    biases = packed.biases if "biases" in packed else None
    table = np.array(mx.dequantize(packed.weight, packed.scales, biases, **quantization).astype(mx.float32))
    np.testing.assert_allclose(np.array(target.embed_rows(ids(tokens))), table[tokens], atol=1e-6)
    np.testing.assert_allclose(np.array(taps)[:, :64], table[tokens], atol=1e-6)
    x = mx.random.normal((3, 64))
    head = packed.as_linear if tied else model.lm_head
    np.testing.assert_allclose(np.array(target.head(x)), np.array(head(x)), atol=1e-4)


def test_gpt_oss_in_mxfp4_is_read_as_it_is(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    path = family_checkpoint(tmp_path, "gpt_oss")
    dense, values = load_file(path / "model.safetensors"), (path / "config.json").read_text()
    for (layer, part), packed in mxfp4_experts(path, (124, 126)).items():
        dense[f"model.layers.{layer}.mlp.experts.{part}"] = convert_moe_packed_tensors(*packed).float().numpy()
    target = opened(open_bundle(export_bundle(path, None, tmp_path / "bundle")))
    assert any(weight.dtype == mx.uint32 for _, weight in tree_flatten(target._model.parameters()))
    save_file(dense, path / "model.safetensors")
    (path / "config.json").write_text(values)
    np.testing.assert_allclose(counted(target, TOKENS, [30, 1, 5, 12]), true_logits(path, TOKENS), atol=1e-4)


def test_the_embedding_is_raw_and_the_head_without_a_cap(tmp_path: Path) -> None:
    target = opened(family_bundle(tmp_path, "gemma4"), (0,))
    table = mx.load(str(tmp_path / "source" / "model.safetensors"))["model.embed_tokens.weight"]
    rows = target.embed_rows(ids([7, 8]))
    assert mx.array_equal(rows, table[7:9])
    _, taps = target(ids([7, 8]))
    np.testing.assert_allclose(np.array(taps), 8.0 * np.array(rows), rtol=1e-6)  # the stream has the scale, sqrt(64)
    x = 100.0 * mx.random.normal((2, 64))
    np.testing.assert_allclose(np.array(target.head(x)), np.array(x @ table.T), rtol=1e-4, atol=1e-3)
    assert float(mx.abs(target.head(x)).max()) > 30.0


def test_a_state_that_cannot_go_back_means_plain_decoding(tmp_path: Path) -> None:
    model = own_model(tmp_path, LFM2)
    target = opened(bundle_of(tmp_path), (1, 3))
    assert not target.can_rollback
    assert target.why_no_rollback == (
        "The model type lfm2 keeps a state that cannot go back to an earlier token (ArraysCache), so it is decoded "
        "plainly, without a draft."
    )
    tokens = [token % 64 for token in TOKENS]
    wanted = np.array(model(ids(tokens)[None])[0])
    for sizes in ([48], [20, *[1] * 28]):
        np.testing.assert_allclose(counted(target, tokens, sizes), wanted, atol=1e-4)
    assert not target.keep(47)
    assert target.rows == 48
    assert target.keep(48)
    target(ids([5, 6]))
    with pytest.raises(AssertionError):
        target.advance(1)  # the second row could not be dropped
    assert not target.keep(48)
    np.testing.assert_allclose(counted(target, tokens, [48]), wanted, atol=1e-4)


def test_gemma3_has_its_embedding_scale_exactly(tmp_path: Path) -> None:
    target = opened(family_bundle(tmp_path, "gemma3", changes={"hidden_size": 80}), (0,))
    np.testing.assert_allclose(counted(target, TOKENS, [48]), true_logits(tmp_path / "source", TOKENS), atol=1e-4)
    assert target.keep(0)
    _, taps = target(ids([7, 8]))
    np.testing.assert_allclose(np.array(taps), 80**0.5 * np.array(target.embed_rows(ids([7, 8]))), rtol=1e-6)


def test_a_nested_checkpoint_is_the_same_target(tmp_path: Path) -> None:
    bundles = [family_bundle(tmp_path / str(nested), "gemma4", nested=nested) for nested in (False, True)]
    flat, nested = (counted(opened(bundle), TOKENS, [48]) for bundle in bundles)
    assert close(nested, flat)


def test_yarn_is_not_rounded_where_the_model_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = family_bundle(tmp_path, "gpt_oss")
    truth = true_logits(tmp_path / "source", TOKENS)
    monkeypatch.setattr(mlx_model, "_set_yarn", lambda model, rope: None)
    assert np.abs(counted(opened(bundle), TOKENS, [48]) - truth).max() > 1e-3  # mlx-lm's own positions


def test_a_cache_that_a_model_asks_more_of_is_not_rolled_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = own_model(tmp_path, LLAMA)
    attend = llama.Attention.__call__

    def asks(self: Any, x: Any, mask: Any = None, cache: Any = None) -> Any:
        out = attend(self, x, mask, cache)
        assert cache is None or cache.keys_and_values()  # as models do that share keys and values by their cache
        return out

    monkeypatch.setattr(llama.Attention, "__call__", asks)
    target = opened(bundle_of(tmp_path), (1,))
    assert not target.can_rollback
    assert "(KVCache)" in target.why_no_rollback
    tokens = [token % 96 for token in TOKENS]
    np.testing.assert_allclose(
        counted(target, tokens, [40, *[1] * 8]), np.array(model(ids(tokens)[None])[0]), atol=1e-4
    )


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"model_type": "no_such_model"}, "no_such_model not supported"),
        ({"num_hidden_layers": 5}, "parameters not in model"),
        ({"hidden_size": 32}, "shape"),
    ],
)
def test_what_mlx_lm_cannot_open_is_told_in_a_sentence(changes: dict[str, Any], match: str, tmp_path: Path) -> None:
    bundle = family_bundle(tmp_path, "gemma3")
    file = bundle.path / "target" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(BackendError, match=match) as caught:
        opened(bundle)
    assert "config.json" in caught.value.message
    assert caught.value.fix == "Use the torch backend for this target."


def test_the_share_that_is_loaded_is_reported(tmp_path: Path) -> None:
    shares: list[float] = []
    MlxTarget(family_bundle(tmp_path, "llama"), (), 64, mx.float32, shares.append)
    assert shares == [0.25, 0.5, 0.75, 1.0]


def test_vocabulary(tmp_path: Path) -> None:
    target = opened(family_bundle(tmp_path, "qwen3"))
    assert target.vocab_size == VOCAB
    assert isinstance(target._model, nn.Module)
