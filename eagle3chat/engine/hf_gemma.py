"""Gemma 3 and Gemma 4 in config.json: to `TargetConfig` and back.

Published configs leave out much; what is missing has transformers' defaults. Source of the keys and defaults: the
configuration classes of transformers 5.24 (`gemma3`, `gemma4`, `gemma4_unified`), and of mlx-lm 0.32 for those that
only MLX programs read. Knows no tensors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from eagle3chat.engine.config import AttentionKind, LayerType, Rope, TargetConfig
from eagle3chat.engine.errors import CheckpointError
from eagle3chat.engine.hf_mixtures import gemma4_experts
from eagle3chat.engine.hf_rope import read_rope, rope_json
from eagle3chat.engine.hf_values import OTHER, Config, check_plain, flag, number, whole

GEMMA3, GEMMA4 = "gemma3_text", "gemma4_text"
TEXT_TYPES: Mapping[str, str] = {GEMMA3: GEMMA3, GEMMA4: GEMMA4, "gemma4_unified_text": GEMMA4}
"""model_type of a text model to its family."""
FULL, SLIDING = "full_attention", "sliding_attention"
_LAYERS: Mapping[Any, LayerType] = {FULL: "full", SLIDING: "sliding"}
_NAMES: Mapping[LayerType, str] = {"full": FULL, "sliding": SLIDING}
_PLAIN: Mapping[str, Collection[Any]] = {
    "hidden_activation": ("gelu_pytorch_tanh",),
    "hidden_act": ("gelu_pytorch_tanh",),
    "attention_bias": (False,),
    "attn_logit_softcapping": (),
    "use_bidirectional_attention": (False, "vision"),  # between the parts of a picture: never in text
    "rope_traditional": (False,),
}
_BASE: Mapping[str, Any] = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 131072,
}
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    GEMMA3: {**_BASE, "num_hidden_layers": 26, "vocab_size": 262208, "sliding_window": 4096},
    GEMMA4: {
        **_BASE,
        "num_hidden_layers": 30,
        "vocab_size": 262144,
        "sliding_window": 512,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262144,
    },
    "gemma4_unified_text": {
        **_BASE,
        "num_hidden_layers": 30,
        "vocab_size": 262144,
        "max_position_embeddings": 262144,
        "sliding_window": 1024,
        "hidden_size_per_layer_input": 0,
    },
}
_THETAS = (1000000.0, 10000.0)  # of full and of sliding layers
_GEMMA4_ROPES: Mapping[str, Any] = {
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": _THETAS[0]},
    SLIDING: {"rope_type": "default", "rope_theta": _THETAS[1]},
}


def read_gemma(config: Config, tied: bool, where: str) -> TargetConfig:
    """A Gemma 3 or Gemma 4 text model's numbers; see `read_target_config`."""
    given = {key: value for key, value in config.items() if value is not None}
    values = {**_DEFAULTS[config["model_type"]], **given}
    check_plain(values, _PLAIN, where)
    width, layers = whole(values, "hidden_size", where), whole(values, "num_hidden_layers", where)
    types = _layer_types(values, layers, where)
    fields: dict[str, Any] = {
        "family": TEXT_TYPES[config["model_type"]],
        "vocab_size": whole(values, "vocab_size", where),
        "hidden_size": width,
        "intermediate_size": whole(values, "intermediate_size", where),
        "num_layers": layers,
        "num_heads": whole(values, "num_attention_heads", where),
        "rms_eps": number(values, "rms_norm_eps", where),
        "max_position": whole(values, "max_position_embeddings", where),
        "tie_embeddings": tied,
        "activation": "gelu_tanh",
        "qk_norm": True,
        "embed_scale": width**0.5,
        "layer_types": types,
        "sandwich_norms": True,
    }
    read = _gemma3 if fields["family"] == GEMMA3 else _gemma4
    return TargetConfig(**fields, **read(values, types, where))


def _layer_types(values: Config, layers: int, where: str) -> tuple[LayerType, ...]:
    named = values.get("layer_types")
    if named is None:
        pattern = values.get("_sliding_window_pattern", 6)
        pattern = whole(values, "sliding_window_pattern", where, pattern if type(pattern) is int else 6)
        named = [SLIDING if (index + 1) % pattern else FULL for index in range(layers)]
    if not isinstance(named, list) or len(named) != layers or any(name not in _LAYERS for name in named):
        raise CheckpointError(f"{where}: layer_types {named!r} are not {FULL} or {SLIDING} for {layers} layers.", OTHER)
    return tuple(_LAYERS[name] for name in named)


def _ropes(values: Config, where: str) -> tuple[Rope, Rope]:
    """Of full and of sliding layers: by layer type, or as older configs have them, at the top."""
    full, local = _THETAS
    local = number(values, "rope_local_base_freq", where, local)
    older = {} if "rope_parameters" in values else {"rope_local_base_freq": local}
    sliding = {**values, **older, "rope_theta": local}
    return read_rope(values, where, "full", full), read_rope(sliding, where, "sliding", local)


def _gemma3(values: Config, types: tuple[LayerType, ...], where: str) -> dict[str, Any]:
    check_plain(values, {"final_logit_softcapping": (), "enable_moe_block": (False,)}, where)
    if _pattern(types) == 0:
        raise CheckpointError(f"{where}: layer_types do not repeat with one full layer last.", OTHER)
    heads, size = whole(values, "num_key_value_heads", where), whole(values, "head_dim", where)
    full, local = _ropes(values, where)
    window = whole(values, "sliding_window", where)
    return {
        "num_kv_heads": heads,
        "head_dim": size,
        "rope": full,
        "sliding": AttentionKind(heads, size, local, window) if "sliding" in types else None,
        "attention_scale": number(values, "query_pre_attn_scalar", where, 256) ** -0.5,
        "norm_offset": 1.0,
    }


def _gemma4(values: Config, types: tuple[LayerType, ...], where: str) -> dict[str, Any]:
    if types[-1] != "full":
        raise CheckpointError(f"{where}: layer_types end with {SLIDING}, which is not known here.", OTHER)
    heads, size = _full_sizes(values, types, where)
    full, local = _ropes({"rope_parameters": _GEMMA4_ROPES, **values}, where)
    sliding = AttentionKind(
        whole(values, "num_key_value_heads", where),
        whole(values, "head_dim", where),
        local,
        whole(values, "sliding_window", where),
    )
    shared = whole(values, "num_kv_shared_layers", where, 0, least=0)
    if shared and set(types[: len(types) - shared]) != set(types):
        raise CheckpointError(f"{where}: num_kv_shared_layers {shared} leaves a layer type without its own.", OTHER)
    double = shared and flag(values, "use_double_wide_mlp", where)
    extra = whole(values, "hidden_size_per_layer_input", where, least=0)
    return {
        "num_kv_heads": heads,
        "head_dim": size,
        "rope": full,
        "sliding": sliding if "sliding" in types else None,
        "key_is_value": flag(values, "attention_k_eq_v", where),
        "attention_scale": 1.0,
        "value_norm": True,
        "logit_softcap": number(values, "final_logit_softcapping", where, 0.0),
        "shared_kv_layers": shared,
        "shared_intermediate_size": 2 * whole(values, "intermediate_size", where) if double else 0,
        "layer_input_size": extra,
        "layer_input_vocab": whole(values, "vocab_size_per_layer_input", where) if extra else 0,
        "layer_scalar": True,
        "experts": gemma4_experts(values, where),
    }


def _full_sizes(values: Config, types: tuple[LayerType, ...], where: str) -> tuple[int, int]:
    """Key-value heads and head width of full layers: `per_layer_config`, or the keys of published configs."""
    heads, by_layer = whole(values, "num_key_value_heads", where), values.get("per_layer_config")
    if by_layer is None:
        if flag(values, "attention_k_eq_v", where):  # without it transformers and mlx-lm do not read the key
            heads = whole(values, "num_global_key_value_heads", where, heads)
        return heads, whole(values, "global_head_dim", where, 512)
    full = {str(index) for index, kind in enumerate(types) if kind == "full"}
    entries = list(by_layer.values()) if isinstance(by_layer, dict) else []
    keys = {key for entry in entries for key in entry} if all(isinstance(entry, dict) for entry in entries) else {""}
    if not entries or set(by_layer) != full or any(entry != entries[0] for entry in entries):
        raise CheckpointError(f"{where}: per_layer_config is not one and the same for all full layers.", OTHER)
    if keys - {"head_dim", "num_key_value_heads"}:
        raise CheckpointError(f"{where}: per_layer_config has keys that are not known here: {sorted(keys)}.", OTHER)
    own = whole(entries[0], "num_key_value_heads", where, heads)
    if own != heads and not flag(values, "attention_k_eq_v", where):
        raise CheckpointError(f"{where}: per_layer_config has other num_key_value_heads without K = V.", OTHER)
    return own, whole(entries[0], "head_dim", where, whole(values, "head_dim", where))


def _pattern(types: tuple[LayerType, ...]) -> int:
    """Every how manyth layer is full, counted from 1; above their number: none is; 0: they do not repeat so."""
    for every in range(1, len(types) + 2):
        if all((kind == "full") == ((index + 1) % every == 0) for index, kind in enumerate(types)):
            return every
    return 0


def gemma_json(config: TargetConfig) -> dict[str, Any]:
    """The keys of a Gemma text model's config.json that other families do not have, or have otherwise."""
    sliding = config.sliding
    values: dict[str, Any] = {
        "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": [_NAMES[kind] for kind in config.layer_types],
        "rope_parameters": {FULL: rope_json(config.rope)},
    }
    if sliding is not None:
        values["sliding_window"] = sliding.window
        values["rope_parameters"][SLIDING] = rope_json(sliding.rope)
    if config.family == GEMMA3:
        scalar = round(config.attention_scale**-2, 6)
        values["query_pre_attn_scalar"] = int(scalar) if scalar == int(scalar) else scalar
        values["sliding_window_pattern"] = _pattern(config.layer_types)
        values["rope_local_base_freq"] = 10000.0 if sliding is None else sliding.rope.theta
        return values
    small = config if sliding is None else sliding
    return values | {
        "num_key_value_heads": small.num_kv_heads,
        "head_dim": small.head_dim,
        "global_head_dim": config.head_dim,
        "num_global_key_value_heads": config.num_kv_heads if config.key_is_value else None,
        "attention_k_eq_v": config.key_is_value,
        "final_logit_softcapping": config.logit_softcap or None,
        "num_kv_shared_layers": config.shared_kv_layers,
        "use_double_wide_mlp": config.shared_intermediate_size > 0,
        "hidden_size_per_layer_input": config.layer_input_size,
        "vocab_size_per_layer_input": config.layer_input_vocab or config.vocab_size,
    }
