"""A Hugging Face directory as a target: dense, sharded, MLX affine, its stops, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny import tiny_bundle

from eagle3chat.engine.checkpoint import open_target
from eagle3chat.engine.config import Quantization, Rope
from eagle3chat.engine.errors import BundleError, CheckpointError
from eagle3chat.engine.hf_config import quantization_json, read_rope, target_config_json
from eagle3chat.engine.manifest import read_manifest


def _directory(tmp_path: Path, config: dict[str, Any] | None = None, **options: Any) -> Path:
    """The target of a tiny bundle as a Hugging Face directory."""
    bundle = tiny_bundle(tmp_path, draft=False, **options)
    manifest = read_manifest(bundle)
    path = tmp_path / "Tiny-Hf"
    shutil.copytree(bundle / "target", path)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(bundle / name, path / name)
    values = target_config_json(manifest.target, manifest.quantization) | (config or {})
    (path / "config.json").write_text(json.dumps(values))
    return path


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dtype": "BF16"},
        {"dtype": "F16", "qk_norm": True},
        {"attention_bias": True, "tied": True},
        {"quantized": True},
        {"rope": Rope("llama3", 500000.0, 8.0, 1.0, 4.0, 8192)},
        {"rope": Rope("linear", 10000.0, 2.0)},
    ],
)
def test_a_directory_is_read_as_it_is(tmp_path: Path, options: dict[str, Any]) -> None:
    path = _directory(tmp_path, **options)
    manifest = read_manifest(tmp_path / "bundle")
    source = open_target(path)
    assert source.name == "Tiny-Hf"
    assert source.config == manifest.target
    assert source.quantization == manifest.quantization
    assert source.stop_ids == (2, 0)
    assert source.bos_id == -1
    assert source.chat_template == (path / "chat_template.jinja").read_text()
    data = (path / "model.safetensors").read_bytes()
    for tensor in source.tensors:
        assert tensor.read() in data
    assert {t.name for t in source.tensors} == {
        name for name in json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]) if name != "__metadata__"
    }


def test_the_head_in_the_file_wins_over_the_flag(tmp_path: Path) -> None:
    path = _directory(tmp_path, {"tie_word_embeddings": True})
    source = open_target(path)
    assert not source.config.tie_embeddings
    assert source.config_json["tie_word_embeddings"] is False


def test_mlx_modules_of_another_form_are_found_in_their_shapes(tmp_path: Path) -> None:
    path = _directory(tmp_path, {"quantization": {"group_size": 32, "bits": 4}}, quantized=True)
    assert open_target(path).quantization == Quantization(32, 4, (("model.embed_tokens", 32, 8),))
    tensors = load_file(path / "model.safetensors")
    head = {f"lm_head.{part}": tensors.pop(f"lm_head.{part}") for part in ("weight", "scales", "biases")}
    assert head["lm_head.weight"].dtype == np.uint32
    tensors["lm_head.weight"] = np.zeros((320, 64), np.float16)  # left dense: needs no entry
    save_file(tensors, path / "model.safetensors")
    written = {"group_size": 32, "bits": 4, "model.embed_tokens": {"bits": 8}, "lm_head": False}
    values = json.loads((path / "config.json").read_text()) | {"quantization": written, "quantization_config": written}
    (path / "config.json").write_text(json.dumps(values))
    source = open_target(path)
    assert source.quantization == Quantization(32, 4, (("model.embed_tokens", 32, 8),))
    assert source.config_json["quantization"] == quantization_json(source.quantization)
    assert "quantization_config" not in source.config_json


def test_stops_and_bos(tmp_path: Path) -> None:
    path = _directory(tmp_path, {"eos_token_id": 9})
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 2]}))
    assert open_target(path).stop_ids == (7, 2, 9, 0)
    words = {"bos_token": {"content": "<|im_start|>"}, "add_bos_token": True, "eos_token": "<|im_end|>"}
    (path / "tokenizer_config.json").write_text(json.dumps(words))
    assert open_target(path).bos_id == 1
    del words["add_bos_token"]
    (path / "tokenizer_config.json").write_text(json.dumps(words))
    assert open_target(path).bos_id == -1
    tokenizer = json.loads((path / "tokenizer.json").read_text())
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
    }
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert open_target(path).bos_id == 1  # the tokenizer itself puts it first


@pytest.mark.parametrize(
    ("words", "template"),
    [
        ({"chat_template": "T"}, "T"),
        ({"chat_template": [{"name": "tool_use", "template": "U"}, {"name": "default", "template": "D"}]}, "D"),
        ({}, ""),
    ],
)
def test_where_a_template_is_found(tmp_path: Path, words: dict[str, Any], template: str) -> None:
    path = _directory(tmp_path)
    (path / "chat_template.jinja").unlink()
    (path / "tokenizer_config.json").write_text(json.dumps(words))
    source = open_target(path)
    assert source.chat_template == template
    assert "chat_template" not in source.tokenizer_config


@pytest.mark.parametrize(
    ("config", "rope"),
    [
        ({}, Rope(theta=10000.0)),
        ({"rope_theta": 5.0}, Rope(theta=5.0)),
        ({"rope_theta": 5.0, "rope_scaling": {"rope_theta": 6.0}}, Rope(theta=6.0)),
        ({"rope_theta": 5.0, "rope_scaling": None, "rope_parameters": {"rope_theta": 7.0}}, Rope(theta=7.0)),
        ({"rope_scaling": {"rope_theta": 6.0}, "rope_parameters": {"rope_theta": 7.0}}, Rope(theta=7.0)),
        ({"rope_theta": 5.0, "rope_scaling": {"type": "linear", "factor": 2.0}}, Rope("linear", 5.0, 2.0)),
        ({"rope_theta": 5.0, "rope_local_base_freq": 6.0}, Rope(theta=5.0)),
    ],
)
def test_rope_precedence(config: dict[str, Any], rope: Rope) -> None:
    assert read_rope(config, "config.json") == rope


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"model_type": "mamba"}, r"the model type 'mamba' is not known.*Known: llama, qwen2, qwen3"),
        ({"model_type": None}, r"the model type None is not known"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, r"the rope kind 'longrope' is not known"),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": 1e4}}}, r"the rope full_attention None"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 0}}, r"factor is 0, not a number"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, r"low_freq_factor is None"),
        ({"rope_parameters": [1]}, r"the rope settings \[1\] are not an object"),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor is not known"),
        ({"hidden_act": "relu"}, r"hidden_act 'relu' is not known here"),
        ({"mlp_bias": True}, r"mlp_bias True"),
        ({"attention_bias": True}, r"attention_bias does not fit llama"),
        ({"rms_norm_eps": -1.0}, r"rms_norm_eps is -1\.0, not a number above 0"),
        ({"vocab_size": 200}, r"embed_tokens\.weight has the shape \[320, 64\], not \[200, 64\]"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, r"the quantisation 'awq' is not known"),
        ({"quantization": {"mode": "nvfp4", "bits": 4}}, r"the quantisation 'nvfp4' is not known"),
    ],
)
def test_what_is_not_known_is_refused_by_name(tmp_path: Path, config: dict[str, Any], what: str) -> None:
    path = _directory(tmp_path, config)
    with pytest.raises(CheckpointError, match=what):
        open_target(path)


def test_files_that_are_missing(tmp_path: Path) -> None:
    path = _directory(tmp_path)
    (path / "tokenizer.json").rename(path / "elsewhere")
    with pytest.raises(BundleError, match=r"tokenizer\.json: is missing"):
        open_target(path)
    (path / "elsewhere").rename(path / "tokenizer.json")
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin holds more than tensors: reading it could run code"):
        open_target(path)
    (path / "config.json").unlink()
    with pytest.raises(BundleError, match=r"config\.json: cannot be read"):
        open_target(path)


def test_a_tokenizer_larger_than_the_model(tmp_path: Path) -> None:
    path = _directory(tmp_path)
    values = json.loads((path / "tokenizer.json").read_text())
    values["added_tokens"].append({"id": 320, "content": "<|more|>", "special": True})
    (path / "tokenizer.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match="has 321 tokens, the model knows 320"):
        open_target(path)
