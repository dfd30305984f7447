"""GGUF's other block types and architectures, against the gguf package's own numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import ggufs
import numpy as np
import numpy.typing as npt
import pytest
from gguf.quants import dequantize
from ggufs import HEAD_DIM, HEADS, KV_HEADS, LAYERS, WIDTH, tiny_gguf
from tokenizers import Tokenizer

from eagle3chat.engine.affine import dequantized
from eagle3chat.engine.affine_source import Converted
from eagle3chat.engine.bundle import open_bundle
from eagle3chat.engine.checkpoint import open_target
from eagle3chat.engine.errors import CheckpointError
from eagle3chat.engine.export import export_bundle
from eagle3chat.engine.gguf_blocks import LAYOUTS, block_codes
from eagle3chat.engine.recoding import Changes

Array = npt.NDArray[Any]
Kind = gguf.GGMLQuantizationType
KINDS = ("Q5_0", "Q5_1", "Q4_K", "Q5_K")


def random_blocks(kind: str, rows: int, columns: int, seed: int = 0) -> Array:
    """Blocks of random codes whose float16 numbers are of a usual size; U8 [rows, bytes]."""
    rng = np.random.default_rng(seed)
    weights, size = gguf.GGML_QUANT_SIZES[Kind[kind]]
    blocks = rng.integers(0, 256, (rows, columns // weights, size), np.uint8)
    at = (208,) if kind == "Q6_K" else (0,) if kind == "Q5_0" else (0, 2)
    for place in at:
        halves = (rng.uniform(-1.0, 1.0, blocks.shape[:2]) * 0.01).astype("<f2")
        blocks[:, :, place : place + 2] = halves[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("turned", [False, True])
def test_blocks_with_an_affine_form(kind: str, turned: bool) -> None:
    assert set(LAYOUTS) == set(KINDS)
    rows = random_blocks(kind, 6, 512)
    order = np.array([3, 1, 0, 5, 4, 2]) if turned else None
    made = Converted()
    made.add("m", block_codes(kind, rows, order), "file")
    parts = [made.tensors[f"m.{part}"] for part in ("weight", "scales", "biases")]
    words, scales, biases = (
        np.frombuffer(t.read(), "<u4" if t.dtype == "U32" else "<f4").reshape(t.shape) for t in parts
    )
    ours = dequantized(words, scales, biases, made.forms["m"][1])
    theirs = dequantize(rows, Kind[kind])
    assert np.array_equal(ours, theirs if order is None else theirs[order])
    mx = pytest.importorskip("mlx.core")
    opened = mx.dequantize(mx.array(words), mx.array(scales), mx.array(biases), group_size=32, bits=made.forms["m"][1])
    np.testing.assert_allclose(np.array(opened), ours, rtol=1e-5, atol=1e-7)


@pytest.fixture
def wide_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, dict[str, Array]]:
    """A llama of width 256 whose linears are Q4_K, but for up and q, which are Q6_K."""
    for name, size in (("WIDTH", 256), ("INNER", 256), ("HEAD_DIM", 64)):
        monkeypatch.setattr(ggufs, name, size)
    plain = ggufs.quantize

    def blocks(values: Array, kind: Any) -> Array:
        if kind.name not in ("Q4_K", "Q6_K"):
            return plain(values, kind)  # type: ignore[no-any-return]
        return random_blocks(kind.name, *values.shape, seed=values.shape[0])

    monkeypatch.setattr(ggufs, "quantize", blocks)
    types = {f"blk.{layer}.{name}.weight": "Q6_K" for layer in range(LAYERS) for name in ("ffn_up", "attn_q")}
    keys = {"tokenizer.chat_template": "{{ messages }}"}
    values = tiny_gguf(tmp_path / "m.gguf", linears="Q4_K", layer_types=types, keys=keys)
    return tmp_path / "m.gguf", values


def test_a_type_without_a_form_is_refused_or_measured(tmp_path: Path, wide_file: tuple[Path, dict[str, Array]]) -> None:
    path, values = wide_file
    with pytest.raises(CheckpointError, match=r"self_attn\.q_proj and 3 more .*: the type Q6_K has no affine form"):
        export_bundle(path, None, tmp_path / "out")
    source = open_target(path)
    up = next(t for t in source.tensors if t.name == "model.layers.1.mlp.up_proj.weight")
    assert (up.dtype, up.shape) == ("F32", (256, 256))
    stored = values["blk.1.ffn_up.weight"]
    assert np.array_equal(np.frombuffer(up.rows([7, 200]), "<f4").reshape(2, 256), stored[[7, 200]])
    q = next(t for t in source.tensors if t.name == "model.layers.0.self_attn.q_proj.weight")
    expected = values["blk.0.attn_q.weight"].reshape(4, 32, 2, 256).swapaxes(1, 2).reshape(256, 256)
    assert np.array_equal(np.frombuffer(q.read(), "<f4").reshape(256, 256), expected)
    remarks: list[str] = []
    out = export_bundle(path, None, tmp_path / "out", changes=Changes(requantize=True), remark=remarks.append)
    assert remarks[-1].startswith("4 matrices of the target were quantised: relative error 0.")
    quantization = open_bundle(out).manifest.quantization
    assert quantization is not None and quantization.bits == 4
    assert ("model.layers.1.mlp.up_proj", 32, 8) in quantization.overrides


@pytest.mark.parametrize(("family", "parts"), [("qwen2", "bias"), ("qwen3", "norm")])
def test_families_whose_rows_stay(tmp_path: Path, family: str, parts: str) -> None:
    rng = np.random.default_rng(0)
    extra: dict[str, Array] = {}
    for layer in range(LAYERS):
        if parts == "bias":
            for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
                extra[f"blk.{layer}.attn_{name}.bias"] = rng.standard_normal(heads * HEAD_DIM).astype(np.float32)
        else:
            for name in "qk":
                extra[f"blk.{layer}.attn_{name}_norm.weight"] = rng.standard_normal(HEAD_DIM).astype(np.float32)
    keys = {"tokenizer.ggml.pre": "qwen2", "tokenizer.chat_template": "{{ messages }}"}
    stored = tiny_gguf(tmp_path / "m.gguf", architecture=family, linears="F32", extra=extra, keys=keys)
    source = open_target(tmp_path / "m.gguf")
    assert (source.config.family, source.config.qk_norm, source.config.attention_bias) == (
        family,
        parts == "norm",
        parts == "bias",
    )
    values = {t.name: np.frombuffer(t.read(), "<f4").reshape(t.shape) for t in source.tensors if t.dtype == "F32"}
    assert np.array_equal(values["model.layers.1.self_attn.q_proj.weight"], stored["blk.1.attn_q.weight"])
    name = "self_attn.k_proj.bias" if parts == "bias" else "self_attn.k_norm.weight"
    at = "attn_k.bias" if parts == "bias" else "attn_k_norm.weight"
    assert np.array_equal(values[f"model.layers.1.{name}"], extra[f"blk.1.{at}"])
    assert open_bundle(export_bundle(tmp_path / "m.gguf", None, tmp_path / "out")).manifest.family == family
    assert source.config.hidden_size == WIDTH


def test_the_splitting_rule_of_qwen(tmp_path: Path) -> None:
    from transformers.models.qwen2 import tokenization_qwen2

    from eagle3chat.engine.gguf_tokenizer import QWEN2_SPLIT

    assert QWEN2_SPLIT == tokenization_qwen2.PRETOKENIZE_REGEX
    tiny_gguf(tmp_path / "m.gguf", keys={"tokenizer.ggml.pre": "qwen2"})
    tokenizer = Tokenizer.from_str(open_target(tmp_path / "m.gguf").tokenizer.decode())
    assert tokenizer.encode("ab a12").tokens == ["ab", "Ġa", "1", "2"]  # each digit alone
    assert tokenizer.normalizer.normalize_str("e\u0301") == "\u00e9"
