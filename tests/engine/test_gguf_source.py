"""A small GGUF as a target: values, names, row order, config, tokenizer, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from ggufs import HEAD_DIM, HEADS, KV_HEADS, TOKENS, tiny_gguf
from tokenizers import Tokenizer

from eagle3chat.engine.affine import dequantized
from eagle3chat.engine.checkpoint import TargetSource, open_target
from eagle3chat.engine.config import Quantization, Rope
from eagle3chat.engine.errors import CheckpointError
from eagle3chat.engine.gguf_source import llama3_divisors
from eagle3chat.engine.layout import group_and_bits, target_modules

NUMPY = {"U32": "<u4", "F16": "<f2", "F32": "<f4"}


def _arrays(source: TargetSource) -> dict[str, npt.NDArray[Any]]:
    arrays = {}
    for tensor in source.tensors:
        if tensor.dtype == "BF16":
            wide = np.frombuffer(tensor.read(), "<u2").astype(np.uint32) << 16
            arrays[tensor.name] = wide.view(np.float32).reshape(tensor.shape)
        else:
            arrays[tensor.name] = np.frombuffer(tensor.read(), NUMPY[tensor.dtype]).reshape(tensor.shape)
    return arrays


def _dense(source: TargetSource) -> dict[str, npt.NDArray[Any]]:
    """Every module's weight as numbers."""
    arrays = _arrays(source)
    for module, _, _ in target_modules(source.config):
        if f"{module}.scales" in arrays:
            assert source.quantization is not None
            group, bits = group_and_bits(source.quantization, module)
            parts = (arrays.pop(f"{module}.{part}") for part in ("weight", "scales", "biases"))
            arrays[f"{module}.weight"] = dequantized(*parts, bits)
            assert group == 32
    return arrays


def _hf_rows(stored: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """Row h*d + p*d/2 + i of the result is row h*d + 2i + p of what is stored, spelled out."""
    rows = np.empty_like(stored)
    for h in range(heads):
        for i in range(HEAD_DIM // 2):
            for p in (0, 1):
                rows[h * HEAD_DIM + p * HEAD_DIM // 2 + i] = stored[h * HEAD_DIM + 2 * i + p]
    return rows


@pytest.mark.parametrize("linears", ["Q4_0", "Q4_1", "Q8_0", "Q5_0", "Q5_1", "F32", "F16", "BF16"])
@pytest.mark.parametrize("tied", [True, False])
def test_every_value_is_kept(tmp_path: Path, linears: str, tied: bool) -> None:
    stored = tiny_gguf(tmp_path / "m.gguf", linears=linears, tied=tied)
    source = open_target(tmp_path / "m.gguf")
    values = _dense(source)
    names = {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "blk.1.attn_v": "model.layers.1.self_attn.v_proj",
        "blk.0.attn_output": "model.layers.0.self_attn.o_proj",
        "blk.1.ffn_gate": "model.layers.1.mlp.gate_proj",
        "blk.0.ffn_up": "model.layers.0.mlp.up_proj",
        "blk.0.ffn_down": "model.layers.0.mlp.down_proj",
        "blk.1.attn_norm": "model.layers.1.input_layernorm",
        "blk.0.ffn_norm": "model.layers.0.post_attention_layernorm",
    } | ({} if tied else {"output": "lm_head"})
    for name, module in names.items():
        assert np.array_equal(values[f"{module}.weight"], stored[f"{name}.weight"]), name
    for letter, heads in (("q", HEADS), ("k", KV_HEADS)):
        expected = _hf_rows(stored[f"blk.1.attn_{letter}.weight"], heads)
        assert np.array_equal(values[f"model.layers.1.self_attn.{letter}_proj.weight"], expected)
    assert len(values) == len(stored)
    assert source.config.tie_embeddings == tied


def test_config_and_quantisation(tmp_path: Path) -> None:
    tiny_gguf(tmp_path / "Tiny-Model.Q4_1.gguf", layer_types={"blk.0.attn_v.weight": "F16"})
    source = open_target(tmp_path / "Tiny-Model.Q4_1.gguf")
    assert source.name == "Tiny-Model"
    assert source.quantization == Quantization(32, 4, (("model.embed_tokens", 32, 8),))
    config = source.config
    assert (config.family, config.vocab_size, config.num_layers, config.head_dim) == ("llama", 32, 2, 16)
    assert (config.rms_eps, config.rope, config.max_position) == (1e-05, Rope(theta=10000.0), 128)
    assert source.config_json["quantization"] == {
        "group_size": 32,
        "bits": 4,
        "mode": "affine",
        "model.embed_tokens": {"group_size": 32, "bits": 8},
    }
    assert (source.bos_id, source.stop_ids) == (-1, (2,))
    assert source.tokenizer_config["eos_token"] == "</s>"


def test_bos_only_where_the_file_asks_for_it(tmp_path: Path) -> None:
    tiny_gguf(tmp_path / "m.gguf", keys={"tokenizer.ggml.add_bos_token": True})
    assert open_target(tmp_path / "m.gguf").bos_id == 1


def test_the_tokenizer(tmp_path: Path) -> None:
    tiny_gguf(tmp_path / "m.gguf")
    data = open_target(tmp_path / "m.gguf").tokenizer
    tokenizer = Tokenizer.from_str(data.decode())
    assert tokenizer.get_vocab_size() == 32
    assert tokenizer.encode("ab a12</s>").tokens == ["ab", "Ġa", "1", "2", "</s>"]
    assert tokenizer.decode(tokenizer.encode("ab a12").ids) == "ab a12"
    assert {t["content"]: t["special"] for t in json.loads(data)["added_tokens"]} == dict.fromkeys(TOKENS[:3], True)


@pytest.mark.parametrize(
    ("pre", "tokens"),
    [
        ("smollm", ["ab", "Ġa", "1", "2", "Ġ", "1"]),  # each digit alone
        ("gpt-2", ["ab", "Ġa", "12", "Ġ", "1"]),
        ("llama-bpe", ["ab", "Ġa", "12", "Ġ", "1"]),
    ],
)
def test_the_splitting_rule(tmp_path: Path, pre: str, tokens: list[str]) -> None:
    tiny_gguf(tmp_path / "m.gguf", keys={"tokenizer.ggml.pre": pre})
    tokenizer = Tokenizer.from_str(open_target(tmp_path / "m.gguf").tokenizer.decode())
    assert tokenizer.encode("ab a12 1").tokens == tokens


@pytest.mark.parametrize(
    ("keys", "rope"),
    [
        ({"llama.rope.freq_base": 100000.0}, Rope(theta=100000.0)),
        (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
            Rope("linear", 10000.0, 4.0),
        ),
    ],
)
def test_rope(tmp_path: Path, keys: Mapping[str, Any], rope: Rope) -> None:
    tiny_gguf(tmp_path / "m.gguf", keys=keys)
    assert open_target(tmp_path / "m.gguf").config.rope == rope


def test_llama3_divisors_become_a_rope_kind(tmp_path: Path) -> None:
    rope = Rope("llama3", 500000.0, 32.0, 1.0, 4.0, 8192)
    divisors = llama3_divisors(rope, HEAD_DIM).astype(np.float32)
    keys = {"llama.rope.freq_base": 500000.0}
    tiny_gguf(tmp_path / "m.gguf", keys=keys, extra={"rope_freqs.weight": divisors})
    source = open_target(tmp_path / "m.gguf")
    assert source.config.rope == rope
    assert not any("rope" in tensor.name for tensor in source.tensors)
    tiny_gguf(tmp_path / "n.gguf", keys=keys, extra={"rope_freqs.weight": divisors * np.float32(1.5)})
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight is not of a known kind"):
        open_target(tmp_path / "n.gguf")


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"architecture": "phi3"}, r"m\.gguf: the architecture 'phi3' is not known\. Known: llama, qwen2, qwen3\."),
        ({"architecture": "qwen2"}, r"the tensor model\.layers\.0\.self_attn\.q_proj\.bias is missing"),
        ({"extra": {"blk.0.attn_q.bias": np.zeros(64, np.float32)}}, r"the tensor blk\.0\.attn_q\.bias is not known"),
        ({"extra": {"blk.0.ffn_gate_inp.weight": np.zeros((4, 64), np.float32)}}, r"ffn_gate_inp\.weight is not known"),
        ({"keys": {"llama.block_count": 3}}, r"the tensor model\.layers\.2\.\S+ is missing"),
        ({"keys": {"llama.block_count": None}}, r"block_count is None, not a whole number above 0"),
        ({"keys": {"llama.vocab_size": 64}}, r"embed_tokens\.weight has the shape \[32, 16\], not \[64, 16\]"),
        ({"keys": {"llama.rope.dimension_count": 8}}, r"rotary positions on part of a head"),
        ({"keys": {"llama.rope.scaling.type": "yarn"}}, r"the rope scaling 'yarn' is not known"),
        ({"keys": {"tokenizer.ggml.model": "llama"}}, r"the tokenizer model 'llama' is not known"),
        ({"keys": {"tokenizer.ggml.pre": "other"}}, r"the tokenizer's splitting rule 'other' is not known"),
        ({"keys": {"tokenizer.ggml.merges": None}}, r"tokens or merges are missing"),
    ],
)
def test_what_is_not_known_is_refused_by_name(tmp_path: Path, options: dict[str, Any], what: str) -> None:
    tiny_gguf(tmp_path / "m.gguf", **options)
    with pytest.raises(CheckpointError, match=what):
        open_target(tmp_path / "m.gguf")


def test_a_damaged_file(tmp_path: Path) -> None:
    tiny_gguf(tmp_path / "m.gguf")
    data = (tmp_path / "m.gguf").read_bytes()
    for name, cut in (("short.gguf", data[: len(data) // 2]), ("other.gguf", b"text" * 9), ("empty.gguf", b"")):
        (tmp_path / name).write_bytes(cut)
        with pytest.raises(CheckpointError, match="is not a GGUF file, or is cut off"):
            open_target(tmp_path / name)


def test_not_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        open_target(tmp_path / "nothing.gguf")
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match="not a checkpoint of a known kind"):
        open_target(tmp_path / "model.bin")
