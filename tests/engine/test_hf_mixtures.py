"""Mixtures of experts from Hugging Face directories: configs read and written, one layout for both backends."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import CONFIGS, MIXTURES, family_checkpoint, mxfp4_experts
from safetensors.numpy import load_file, save_file
from tiny import quantize

from eagle3chat.engine.bundle import open_bundle
from eagle3chat.engine.checkpoint import open_target
from eagle3chat.engine.config import AttentionKind, Experts, Quantization, Rope
from eagle3chat.engine.errors import CheckpointError
from eagle3chat.engine.expert_layout import expert_stacks
from eagle3chat.engine.export import export_bundle
from eagle3chat.engine.hf_config import read_target_config, target_config_json

EXPERTS = {
    "gpt_oss": Experts("gpt_oss", 8, 2, 64, limit=7.0),
    "gemma4_moe": Experts("gemma4", 8, 2, 32),
    "qwen3_moe": Experts("qwen3", 8, 2, 32, normalize=True),
}


@pytest.mark.parametrize("family", MIXTURES)
def test_a_config_is_read_written_and_read_again(family: str) -> None:
    config = read_target_config(CONFIGS[family], True, "config.json")
    assert config.experts == EXPERTS[family]
    assert read_target_config(target_config_json(config, None), True, "config.json") == config


def test_gpt_oss_has_biases_sinks_and_windows() -> None:
    config = read_target_config(CONFIGS["gpt_oss"], False, "config.json")
    rope = config.rope
    assert (rope.kind, rope.factor, rope.original_max_position, rope.truncate) == ("yarn", 4.0, 512, False)
    assert config.sliding == AttentionKind(2, 16, rope, 8)
    assert config.layer_types == ("sliding", "full", "sliding", "full")
    assert (config.sinks, config.output_bias, config.attention_bias, config.qk_norm) == (True, True, True, False)


def test_gpt_oss_without_rope_layers_and_window_has_the_defaults() -> None:
    left_out = ("rope_scaling", "rope_theta", "layer_types", "sliding_window", "swiglu_limit")
    values = {key: value for key, value in CONFIGS["gpt_oss"].items() if key not in left_out}
    config = read_target_config(values, False, "config.json")
    wanted = Rope("yarn", 150000.0, 32.0, original_max_position=4096, attention_factor=1.3465735902799727)
    assert config.rope.kind == "yarn" and not config.rope.truncate
    assert config.rope.attention_factor == pytest.approx(wanted.attention_factor, abs=1e-12)
    assert (config.rope.theta, config.rope.factor, config.rope.original_max_position) == (150000.0, 32.0, 4096)
    assert config.sliding is not None and config.sliding.window == 128
    assert config.layer_types == ("sliding", "full", "sliding", "full")
    assert config.experts == EXPERTS["gpt_oss"]


@pytest.mark.parametrize(
    ("family", "change", "what"),
    [
        ("qwen3_moe", {"mlp_only_layers": [0]}, r"mlp_only_layers \[0\] is not known"),
        ("qwen3_moe", {"decoder_sparse_step": 2}, "decoder_sparse_step 2 is not known"),
        ("qwen3_moe", {"num_experts": None}, "num_experts is None"),
        ("qwen3_moe", {"num_experts_per_tok": 9}, "9 experts for each token are more than all 8"),
        ("gpt_oss", {"swiglu_limit": 5.0}, r"swiglu_limit 5\.0 is not known"),
        ("gpt_oss", {"swiglu_alpha": 1.5}, r"swiglu_alpha 1\.5 is not known"),
        ("gpt_oss", {"layer_types": ["chunked_attention"] * 4}, "chunked_attention"),
        ("gpt_oss", {"layer_types": ["full_attention"]}, "are not those of 4 full or sliding layers"),
        ("gpt_oss", {"attention_bias": False}, "attention_bias does not fit gpt_oss"),
        ("gemma4_moe", {"top_k_experts": None}, "top_k_experts is None"),
        ("gemma3", {"enable_moe_block": True}, "enable_moe_block True is not known"),
        ("qwen3", {"num_experts": 8}, "num_experts 8 is not known"),
        ("llama", {"num_local_experts": 8}, "num_local_experts 8 is not known"),
    ],
)
def test_what_is_not_known_is_refused_by_name(family: str, change: dict[str, Any], what: str) -> None:
    with pytest.raises(CheckpointError, match=what):
        read_target_config(CONFIGS[family] | change, True, "config.json")


@pytest.mark.parametrize("family", MIXTURES)
def test_a_bundle_has_its_experts_stacked(family: str, tmp_path: Path) -> None:
    path = family_checkpoint(tmp_path, family)
    bundle = open_bundle(export_bundle(path, None, tmp_path / "bundle"))
    config = bundle.manifest.target
    tensors = load_file(tmp_path / "bundle" / "target" / "model.safetensors")
    for module, *shape in expert_stacks(config):
        assert tensors[f"{module}.weight"].shape == tuple(shape)
    found = json.loads((tmp_path / "bundle" / "target" / "config.json").read_text())
    assert read_target_config(found, config.tie_embeddings, "config.json") == config


def test_gemma_within_a_model_of_pictures_is_the_same(tmp_path: Path) -> None:
    flat = open_target(family_checkpoint(tmp_path, "gemma4_moe"))
    nested = open_target(family_checkpoint(tmp_path / "nested", "gemma4_moe", nested=True))
    assert nested.config == flat.config
    assert {t.name: t.read() for t in nested.tensors} == {t.name: t.read() for t in flat.tensors}


@pytest.mark.parametrize("family", MIXTURES)
def test_quantised_stacks_are_taken_as_they_are(family: str, tmp_path: Path) -> None:
    path = family_checkpoint(tmp_path, family)
    export_bundle(path, None, tmp_path / "bundle")
    tensors = load_file(tmp_path / "bundle" / "target" / "model.safetensors")
    values = json.loads((tmp_path / "bundle" / "target" / "config.json").read_text())
    config = read_target_config(values, False, "config.json")
    stacks = list(expert_stacks(config))
    for index, (module, count, rows, columns) in enumerate(stacks):
        flat = tensors[f"{module}.weight"].reshape(-1, columns)
        words, scales, biases = quantize(flat, 4 if index else 8)
        tensors |= {f"{module}.weight": words, f"{module}.scales": scales, f"{module}.biases": biases}
        for part in ("weight", "scales", "biases"):
            tensors[f"{module}.{part}"] = tensors[f"{module}.{part}"].reshape(count, rows, -1)
    save_file(tensors, path / "model.safetensors")
    values["quantization"] = {"group_size": 32, "bits": 4}
    (path / "config.json").write_text(json.dumps(values))
    source = open_target(path)
    assert source.quantization == Quantization(32, 4, ((stacks[0][0], 32, 8),))
    assert {tensor.name: tensor.shape for tensor in source.tensors} == {n: t.shape for n, t in tensors.items()}
    export_bundle(path, None, tmp_path / "quantised")
    tensors[f"{stacks[1][0]}.scales"] = tensors[f"{stacks[1][0]}.scales"][:, :-1]
    save_file({n: np.ascontiguousarray(t) for n, t in tensors.items()}, path / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"the tensor {stacks[1][0]}\.scales has the shape"):
        open_target(path)


def test_gpt_oss_in_mxfp4_stays_so(tmp_path: Path) -> None:
    path = family_checkpoint(tmp_path, "gpt_oss")
    packed = mxfp4_experts(path, (120, 124))
    source = open_target(path)
    stacks = tuple(module for module, *_ in expert_stacks(source.config))
    assert source.quantization == Quantization(32, 4, mxfp4=stacks)
    assert "quantization_config" not in source.config_json
    assert source.config_json["quantization"][stacks[0]] == {"group_size": 32, "bits": 4, "mode": "mxfp4"}
    tensors = {tensor.name: tensor for tensor in source.tensors}
    words, scales = (tensors[f"model.layers.3.mlp.experts.up_proj.{part}"] for part in ("weight", "scales"))
    assert (words.dtype, words.shape, scales.dtype, scales.shape) == ("U32", (8, 64, 8), "U8", (8, 64, 2))
    blocks, powers = packed[3, "gate_up_proj"]
    assert words.read() == blocks[:, 1::2].numpy().tobytes()
    assert scales.read() == powers[:, 1::2].numpy().tobytes()


def test_the_bundle_of_mxfp4_is_read_again(tmp_path: Path) -> None:
    """As an MLX directory has it: modes by module, matrices beside experts."""
    path = family_checkpoint(tmp_path, "gpt_oss")
    mxfp4_experts(path, (120, 124))
    export_bundle(path, None, tmp_path / "bundle")
    source = open_target(path)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(tmp_path / "bundle" / "target" / name, path / name)
    again = open_target(path)
    assert again.quantization == source.quantization
    assert {tensor.name for tensor in again.tensors} == {tensor.name for tensor in source.tensors}
    tensors = load_file(path / "model.safetensors")
    name = "model.layers.2.mlp.experts.up_proj.scales"
    save_file(tensors | {name: tensors[name][..., :1].copy()}, path / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"the tensor {name} has the shape \[8, 64, 1\], not \[8, 64, 2\]"):
        open_target(path)
    values = json.loads((path / "config.json").read_text())
    values["quantization"]["mode"] = "nvfp4"
    (path / "config.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match="the quantisation 'nvfp4' is not known"):
        open_target(path)


def test_mxfp4_of_another_family_is_refused(tmp_path: Path) -> None:
    path = family_checkpoint(tmp_path, "llama", changes={"quantization_config": {"quant_method": "mxfp4"}})
    with pytest.raises(CheckpointError, match="the quantisation 'mxfp4' is not known"):
        open_target(path)
