"""Hugging Face's config.json: to `TargetConfig`, and back with the keys that Hugging Face and MLX programs read.

A family is a set of flags; one that is not listed here is refused by name. Knows no tensors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from eagle3chat.engine.config import AttentionKind, Quantization, TargetConfig
from eagle3chat.engine.errors import CheckpointError
from eagle3chat.engine.hf_gemma import TEXT_TYPES, gemma_json, read_gemma
from eagle3chat.engine.hf_mixtures import (
    COUNTS,
    GPT_OSS,
    GPT_OSS_THETA,
    QWEN3_MOE,
    default_rope,
    gpt_oss_fields,
    mixture_json,
    qwen3_moe_fields,
)
from eagle3chat.engine.hf_rope import read_rope, rope_json
from eagle3chat.engine.hf_values import OTHER, Config, check_plain, flag, number, read_json, whole
from eagle3chat.engine.layout import MXFP4_BITS, MXFP4_GROUP, group_and_bits

__all__ = ["number", "read_json", "read_rope", "read_target_config", "rope_json", "target_config_json", "whole"]


class Family(NamedTuple):
    """What a model_type says without saying it."""

    architecture: str
    qk_norm: bool = False
    attention_bias: bool = False
    gemma: bool = False
    experts: bool = False


FAMILIES: Mapping[str, Family] = {
    "llama": Family("LlamaForCausalLM"),
    "qwen2": Family("Qwen2ForCausalLM", attention_bias=True),
    "qwen3": Family("Qwen3ForCausalLM", qk_norm=True),
    QWEN3_MOE: Family("Qwen3MoeForCausalLM", qk_norm=True, experts=True),
    GPT_OSS: Family("GptOssForCausalLM", attention_bias=True, experts=True),
    "gemma3_text": Family("Gemma3ForCausalLM", gemma=True),
    "gemma4_text": Family("Gemma4ForCausalLM", gemma=True),
}
WRAPPERS: Mapping[str, str] = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
}
"""Models of pictures and sound around a text model: model_type to that of the text model in `text_config`."""
_ONE = (1, 1.0)
_PLAIN: Mapping[str, Collection[Any]] = {
    "hidden_act": ("silu",),
    "mlp_bias": (False,),
    "use_sliding_window": (False,),
    "attention_multiplier": (),
    "attention_out_bias": (False,),
    "attn_logit_softcapping": (),
    "clip_qkv": (),
    "dual_chunk_attention_config": (),
    "embedding_multiplier": _ONE,
    "final_logit_softcapping": (),
    "logit_scale": _ONE,
    "logits_scaling": _ONE,
    "no_rope_layers": ([],),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "qk_layernorm": (False,),
    "query_pre_attn_scalar": (),
    "residual_multiplier": _ONE,
    "rope_traditional": (False,),
    "use_qk_norm": (False,),
}
"""Keys of relatives that would change the numbers, and the values that do not."""


def text_config(config: Config, where: str) -> Config:
    """The text model's part of a config.json: `text_config` of a wrapper with its model_type filled in, else all of it.

    Raises:
        CheckpointError: The part is missing, or another model's.
    """
    wrapped = WRAPPERS.get(config.get("model_type") or "")
    if wrapped is None:
        return config
    inner = config.get("text_config")
    if not isinstance(inner, dict):
        raise CheckpointError(f"{where}: text_config is {inner!r}, not an object.", "Download the file again.")
    inner = {"model_type": wrapped, **inner}
    if inner["model_type"] != wrapped:
        raise CheckpointError(f"{where}: the model type {inner['model_type']!r} in text_config is not known.", OTHER)
    if "vocab_size" in config:  # MLX programs read and write the one at the top
        inner = {"vocab_size": config["vocab_size"], **inner}
    return inner


def read_target_config(config: Config, tied: bool, where: str) -> TargetConfig:
    """A target's numbers.

    Args:
        config: config.json.
        tied: No lm_head is in the checkpoint. The file's own flag may be stale, so it is not asked.
        where: Names the file in messages.

    Raises:
        CheckpointError: The family or a setting is not known, or a number is missing.
    """
    config = text_config(config, where)
    model_type = config.get("model_type")
    if isinstance(model_type, str) and model_type in TEXT_TYPES:
        return read_gemma(config, tied, where)
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        known = ", ".join((*FAMILIES, *WRAPPERS))
        raise CheckpointError(f"{where}: the model type {model_type!r} is not known.", f"Known: {known}.")
    family = FAMILIES[model_type]
    plain = {key: values for key, values in _PLAIN.items() if not (family.experts and key in COUNTS)}
    check_plain(config, plain, where)
    if flag(config, "attention_bias", where, family.attention_bias) != family.attention_bias:
        raise CheckpointError(f"{where}: attention_bias does not fit {model_type}.", OTHER)
    if model_type != GPT_OSS and set(config.get("layer_types") or ()) - {"full_attention"}:
        raise CheckpointError(f"{where}: layer_types other than full_attention are not known here.", OTHER)
    width, heads = whole(config, "hidden_size", where), whole(config, "num_attention_heads", where)
    layers = whole(config, "num_hidden_layers", where)
    full = _attention(config, width, heads, where)
    fields: dict[str, Any] = {}
    if model_type == QWEN3_MOE:
        fields = qwen3_moe_fields(config, where)
    elif model_type == GPT_OSS:
        fields = gpt_oss_fields(config, layers, full, where)
    return TargetConfig(
        family=model_type,
        vocab_size=whole(config, "vocab_size", where),
        hidden_size=width,
        intermediate_size=whole(config, "intermediate_size", where),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=full.num_kv_heads,
        head_dim=full.head_dim,
        rms_eps=number(config, "rms_norm_eps", where, 1e-6),
        rope=full.rope,
        max_position=whole(config, "max_position_embeddings", where, 2048),
        tie_embeddings=tied,
        qk_norm=family.qk_norm,
        attention_bias=family.attention_bias,
        **fields,
    )


def _attention(config: Config, width: int, heads: int, where: str) -> AttentionKind:
    """Of full layers."""
    if config["model_type"] == GPT_OSS:
        rope = read_rope(default_rope(config), where, theta=GPT_OSS_THETA)
    else:
        rope = read_rope(config, where)
    kv_heads = whole(config, "num_key_value_heads", where, heads)
    return AttentionKind(kv_heads, whole(config, "head_dim", where, width // heads), rope)


def target_config_json(config: TargetConfig, quantization: Quantization | None) -> dict[str, Any]:
    """config.json of a target, with the keys that Hugging Face and MLX programs read."""
    family, rope = FAMILIES[config.family], rope_json(config.rope)
    values: dict[str, Any] = {
        "architectures": [family.architecture],
        "model_type": config.family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_eps,
        "rope_theta": config.rope.theta,
        "rope_parameters": rope,
        "max_position_embeddings": config.max_position,
        "tie_word_embeddings": config.tie_embeddings,
        "attention_bias": config.attention_bias,
    }
    if config.rope.kind != "default" and config.family != "gemma4_text":
        values["rope_scaling"] = rope
    values |= gemma_json(config) if family.gemma else {"hidden_act": "silu"}
    values |= mixture_json(config)
    if quantization is not None:
        values["quantization"] = quantization_json(quantization)
    return values


def quantization_json(quantization: Quantization) -> dict[str, Any]:
    """The `quantization` object of an MLX config.json."""
    values: dict[str, Any] = {"group_size": quantization.group_size, "bits": quantization.bits, "mode": "affine"}
    for path, _, _ in quantization.overrides:
        group, bits = group_and_bits(quantization, path)
        values[path] = {"group_size": group, "bits": bits}
    for path in quantization.mxfp4:
        values[path] = {"group_size": MXFP4_GROUP, "bits": MXFP4_BITS, "mode": "mxfp4"}
    return values
