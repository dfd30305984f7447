"""config.json and tensor names of the dense families: read, written for other programs, refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import CONFIGS, family_checkpoint
from safetensors.numpy import load_file, save_file

from eagle3chat.engine.checkpoint import open_target
from eagle3chat.engine.config import AttentionKind, Quantization, Rope, TargetConfig
from eagle3chat.engine.errors import CheckpointError
from eagle3chat.engine.hf_config import read_target_config, target_config_json
from eagle3chat.engine.hf_names import text_name
from eagle3chat.engine.layout import target_modules, target_vectors

DENSE = ("llama", "llama_yarn", "llama_linear", "qwen2", "qwen3", "gemma3", "gemma4", "gemma4_e")
GEMMA = ("gemma3", "gemma4", "gemma4_e")


def read(config: dict[str, Any], tied: bool = True) -> TargetConfig:
    return read_target_config(config, tied, "config.json")


@pytest.mark.parametrize("family", DENSE)
def test_a_config_is_written_and_read_again(family: str) -> None:
    config = read(CONFIGS[family])
    assert read(target_config_json(config, None)) == config


@pytest.mark.parametrize("family", GEMMA)
def test_transformers_reads_the_written_config_alike(family: str) -> None:
    from transformers import AutoConfig

    written = target_config_json(read(CONFIGS[family]), None)
    made = [AutoConfig.for_model(**json.loads(json.dumps(values))) for values in (written, CONFIGS[family])]
    ours, theirs = (config.to_dict() for config in made)
    keys = ["layer_types", "rope_parameters", "sliding_window", "num_key_value_heads", "hidden_activation", "head_dim"]
    if family == "gemma3":
        keys += ["query_pre_attn_scalar"]
    else:
        keys += ["per_layer_config", "num_kv_shared_layers", "use_double_wide_mlp", "hidden_size_per_layer_input"]
        keys += ["vocab_size_per_layer_input", "final_logit_softcapping", "attention_k_eq_v"]
        assert read(theirs) == read(CONFIGS[family])  # as transformers itself saves it: per_layer_config
    assert {key: ours[key] for key in keys} == {key: theirs[key] for key in keys}


@pytest.mark.parametrize("family", GEMMA)
def test_mlx_lm_reads_the_written_config_alike(family: str) -> None:
    models = pytest.importorskip("mlx_lm.models.gemma3_text" if family == "gemma3" else "mlx_lm.models.gemma4_text")
    config = read(CONFIGS[family])
    args = models.ModelArgs.from_dict(target_config_json(config, None))
    assert config.sliding is not None
    assert (args.sliding_window, args.num_key_value_heads) == (config.sliding.window, config.sliding.num_kv_heads)
    if family == "gemma3":
        assert (args.sliding_window_pattern, args.rope_theta, args.rope_local_base_freq) == (3, 1000000.0, 10000.0)
        assert (args.rope_scaling["factor"], args.query_pre_attn_scalar) == (8.0, 24)
        return
    assert (args.global_head_dim, args.num_kv_shared_layers) == (config.head_dim, config.shared_kv_layers)
    assert args.hidden_size_per_layer_input == config.layer_input_size
    assert args.attention_k_eq_v is config.key_is_value
    assert args.final_logit_softcapping == 30.0
    assert args.rope_parameters["full_attention"]["partial_rotary_factor"] == 0.25


def test_a_config_of_few_keys_has_the_defaults() -> None:
    """The text_config of the published 4B model says no more than this."""
    inner = {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34}
    inner |= {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}
    config = read({"model_type": "gemma3", "text_config": inner})
    assert (config.vocab_size, config.num_heads, config.num_kv_heads, config.head_dim) == (262208, 8, 4, 256)
    assert config.rope == Rope("linear", 1000000.0, 8.0)
    assert config.sliding == AttentionKind(4, 256, Rope(theta=10000.0), 1024)
    assert config.layer_types == ((*["sliding"] * 5, "full") * 6)[:34]
    assert (config.attention_scale, config.norm_offset, config.embed_scale) == (0.0625, 1.0, 2560**0.5)


def test_a_unified_model_is_a_gemma_4() -> None:
    inner = {"model_type": "gemma4_unified_text", "hidden_size": 64, "num_hidden_layers": 12}
    config = read({"model_type": "gemma4_unified", "text_config": inner})
    assert (config.family, config.head_dim, config.layer_input_size) == ("gemma4_text", 512, 0)
    assert config.rope == Rope("proportional", 1000000.0, partial=0.25)
    assert config.sliding is not None and config.sliding.window == 1024


CHANGES: list[tuple[str, dict[str, Any], str]] = [
    ("gemma3", {"layer_types": ["sliding_attention"] * 2 + ["full_attention"] * 4}, "layer_types do not repeat"),
    ("gemma3", {"layer_types": ["full_attention"]}, r"layer_types \['full_attention'\] are not .* for 6 layers"),
    ("gemma3", {"layer_types": ["chunked_attention"] * 6}, "chunked_attention"),
    ("gemma3", {"attn_logit_softcapping": 50.0}, r"attn_logit_softcapping 50\.0 is not known"),
    ("gemma3", {"final_logit_softcapping": 30.0}, r"final_logit_softcapping 30\.0 is not known"),
    ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention True"),
    ("gemma3", {"hidden_activation": "gelu"}, "hidden_activation 'gelu'"),
    ("gemma3", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "the rope kind 'dynamic' is not known"),
    ("gemma3", {"rope_scaling": {"factor": 2.0, "rope_type": "linear", "bend": 1}}, "the rope setting bend is not"),
    ("gemma4", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention 'all'"),
    ("gemma4", {"attention_bias": True}, "attention_bias True"),
    ("gemma4", {"layer_types": ["full_attention"] + ["sliding_attention"] * 5}, "layer_types end with"),
    ("gemma4", {"per_layer_config": {"2": {"head_dim": 32}}}, "per_layer_config is not one and the same"),
    ("gemma4", {"per_layer_config": {"2": {"x": 1}, "5": {"x": 1}}}, r"keys that are not known here: \['x'\]"),
    ("gemma4_e", {"num_kv_shared_layers": 5}, "num_kv_shared_layers 5 leaves"),
    ("gemma4_e", {"num_kv_shared_layers": -1}, "num_kv_shared_layers is -1"),
    ("gemma4", {"rope_parameters": {"full_attention": {}, "sliding_attention": {"rope_type": "x"}}}, "rope kind 'x'"),
    ("llama", {"residual_multiplier": 0.5}, r"residual_multiplier 0\.5 is not known"),
    ("qwen3", {"layer_types": ["sliding_attention"] * 3}, "layer_types other than full_attention"),
]


@pytest.mark.parametrize(("family", "change", "what"), CHANGES)
def test_what_is_not_known_is_refused_by_name(family: str, change: dict[str, Any], what: str) -> None:
    with pytest.raises(CheckpointError, match=what):
        read(CONFIGS[family] | change)


@pytest.mark.parametrize(
    ("name", "inner"),
    [
        ("model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("model.language_model.layers.0.layer_scalar", "model.layers.0.layer_scalar"),
        ("language_model.model.layers.0.layer_scalar", "model.layers.0.layer_scalar"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("language_model.lm_head", "lm_head"),
        ("lm_head.weight", "lm_head.weight"),
        ("model.vision_tower.x", ""),
        ("vision_tower.x", ""),
        ("model.embed_audio.x", ""),
        ("multi_modal_projector.x", ""),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", ""),
        ("model.towers.x", "model.towers.x"),
    ],
)
def test_names_within_the_text_model(name: str, inner: str) -> None:
    assert text_name(name) == inner


@pytest.mark.parametrize("family", GEMMA)
def test_a_wrapper_is_opened_as_its_text_model(family: str, tmp_path: Path) -> None:
    plain, nested = (open_target(family_checkpoint(tmp_path / str(n), family, nested=n)) for n in (False, True))
    assert nested.config == plain.config
    assert {t.name: t.read() for t in nested.tensors} == {t.name: t.read() for t in plain.tensors}
    written = nested.config_json
    assert (written["model_type"], written["eos_token_id"]) == (plain.config.family, 2)
    assert "text_config" not in written
    assert read(dict(written)) == plain.config
    wanted = {f"{module}.weight" for module, _, _ in target_modules(plain.config)}
    assert {t.name for t in nested.tensors} == wanted | {name for name, _ in target_vectors(plain.config)}


def test_keys_that_shared_layers_do_not_read_are_left_out_and_others_not(tmp_path: Path) -> None:
    path = family_checkpoint(tmp_path, "gemma4_e")
    file = path / "model.safetensors"
    tensors = load_file(file)
    unread = "model.layers.4.self_attn.k_proj.weight"
    save_file(tensors | {unread: np.zeros((16, 64), np.float32)}, file)
    assert unread not in {t.name for t in open_target(path).tensors}
    save_file(tensors | {"model.layers.4.self_attn.z_proj.weight": np.zeros((16, 64), np.float32)}, file)
    with pytest.raises(CheckpointError, match=r"layers\.4\.self_attn\.z_proj\.weight is not known"):
        open_target(path)
    save_file(tensors | {"language_model.model.norm.weight": np.zeros(64, np.float32)}, file)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight is there under two names"):
        open_target(path)


def test_names_of_quantised_modules_lose_the_prefix(tmp_path: Path) -> None:
    path = family_checkpoint(tmp_path, "gemma3", nested=True)
    forms = {"language_model.model.layers.0.mlp.up_proj": {"group_size": 64, "bits": 8}}
    forms |= {"vision_tower.x": {"group_size": 64, "bits": 8}}
    values = json.loads((path / "config.json").read_text()) | {"quantization": {"group_size": 32, "bits": 4} | forms}
    (path / "config.json").write_text(json.dumps(values))
    found = open_target(path).quantization
    assert found == Quantization(32, 4, (("model.layers.0.mlp.up_proj", 64, 8),))
