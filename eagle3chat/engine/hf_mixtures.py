"""Mixtures of experts in config.json: what Qwen3 MoE, gpt-oss and Gemma 4 26B-A4B say of them, and back.

Source of the keys and defaults: the configuration classes of transformers 5.24 (`qwen3_moe`, `gpt_oss`, `gemma4`).
Knows no tensors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from eagle3chat.engine.config import AttentionKind, Experts, LayerType, TargetConfig
from eagle3chat.engine.errors import CheckpointError
from eagle3chat.engine.hf_values import OTHER, Config, check_plain, flag, number, whole

QWEN3_MOE, GPT_OSS = "qwen3_moe", "gpt_oss"
GPT_OSS_LIMIT = 7.0  # mlx-lm's gpt-oss knows no other
GPT_OSS_THETA = 150000.0
COUNTS = ("num_experts", "num_local_experts")
"""Keys that say that there are experts."""
_LAYERS: Mapping[Any, LayerType] = {"full_attention": "full", "sliding_attention": "sliding"}
_QWEN3_PLAIN: Mapping[str, Collection[Any]] = {"decoder_sparse_step": (1,), "mlp_only_layers": ([],)}
_GPT_OSS_PLAIN: Mapping[str, Collection[Any]] = {"swiglu_alpha": (1.702,), "swiglu_limit": (GPT_OSS_LIMIT,)}


def qwen3_moe_fields(config: Config, where: str) -> dict[str, Any]:
    """Fields of `TargetConfig` that Qwen3 MoE has besides those of Qwen3.

    Raises:
        CheckpointError: A number is missing, or some layers have no experts.
    """
    check_plain(config, _QWEN3_PLAIN, where)
    count = next((key for key in COUNTS if config.get(key) is not None), COUNTS[0])
    experts = Experts(
        "qwen3",
        count=whole(config, count, where),
        per_token=whole(config, "num_experts_per_tok", where),
        intermediate_size=whole(config, "moe_intermediate_size", where),
        normalize=flag(config, "norm_topk_prob", where),
    )
    return {"experts": _checked(experts, where)}


def gpt_oss_fields(config: Config, layers: int, full: AttentionKind, where: str) -> dict[str, Any]:
    """Fields of `TargetConfig` that gpt-oss has besides those of every family.

    Args:
        layers: Their number.
        full: Attention of full layers; sliding ones differ by their window alone.

    Raises:
        CheckpointError: A number is missing, or layer_types are not full and sliding.
    """
    check_plain(config, _GPT_OSS_PLAIN, where)
    named = config.get("layer_types")
    if named is None:
        named = [("sliding_attention", "full_attention")[index % 2] for index in range(layers)]
    if not isinstance(named, list) or len(named) != layers or any(name not in _LAYERS for name in named):
        raise CheckpointError(
            f"{where}: layer_types {named!r} are not those of {layers} full or sliding layers.", OTHER
        )
    experts = Experts(
        "gpt_oss",
        count=whole(config, "num_local_experts", where),
        per_token=whole(config, "num_experts_per_tok", where),
        intermediate_size=whole(config, "intermediate_size", where),
        limit=number(config, "swiglu_limit", where, GPT_OSS_LIMIT),
    )
    window = whole(config, "sliding_window", where, 128)
    return {
        "experts": _checked(experts, where),
        "layer_types": tuple(_LAYERS[name] for name in named),
        "sliding": AttentionKind(full.num_kv_heads, full.head_dim, full.rope, window),
        "sinks": True,
        "output_bias": True,
    }


def gemma4_experts(config: Config, where: str) -> Experts | None:
    """The experts beside Gemma 4's MLPs, or None."""
    if not flag(config, "enable_moe_block", where):
        return None
    experts = Experts(
        "gemma4",
        count=whole(config, "num_experts", where),
        per_token=whole(config, "top_k_experts", where),
        intermediate_size=whole(config, "moe_intermediate_size", where),
    )
    return _checked(experts, where)


def _checked(experts: Experts, where: str) -> Experts:
    if experts.per_token > experts.count:
        raise CheckpointError(
            f"{where}: {experts.per_token} experts for each token are more than all {experts.count}.",
            "Correct the file.",
        )
    return experts


def mixture_json(config: TargetConfig) -> dict[str, Any]:
    """The keys of config.json that say what the experts are."""
    experts = config.experts
    if experts is None:
        return {"enable_moe_block": False} if config.family == "gemma4_text" else {}
    if experts.kind == "qwen3":
        return {
            "num_experts": experts.count,
            "num_experts_per_tok": experts.per_token,
            "moe_intermediate_size": experts.intermediate_size,
            "norm_topk_prob": experts.normalize,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    if experts.kind == "gemma4":
        return {
            "enable_moe_block": True,
            "num_experts": experts.count,
            "top_k_experts": experts.per_token,
            "moe_intermediate_size": experts.intermediate_size,
        }
    names = {kind: name for name, kind in _LAYERS.items()}
    return {
        "num_local_experts": experts.count,
        "num_experts_per_tok": experts.per_token,
        "swiglu_limit": experts.limit,
        "layer_types": [names[kind] for kind in config.layer_types],
        "sliding_window": 0 if config.sliding is None else config.sliding.window,
    }


def default_rope(config: Config) -> Config:
    """A gpt-oss config with the rope that one without any has."""
    if config.get("rope_parameters") or config.get("rope_scaling"):
        return config
    yarn = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
    return {**config, "rope_scaling": yarn | {"original_max_position_embeddings": 4096}}
