"""Hugging Face's config.json: to `TargetConfig` and `Rope`, and back for a target that came from elsewhere.

A family is a set of flags; one that is not listed here is refused by name, and so is a rope kind. Knows no
tensors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from eagle3chat.engine.config import LayerType, Quantization, Rope, RopeKind, TargetConfig
from eagle3chat.engine.errors import BundleError, CheckpointError
from eagle3chat.engine.layout import group_and_bits

Config = Mapping[str, Any]


class Family(NamedTuple):
    """What a model_type says without saying it."""

    architecture: str
    qk_norm: bool = False
    attention_bias: bool = False


FAMILIES: Mapping[str, Family] = {
    "llama": Family("LlamaForCausalLM"),
    "qwen2": Family("Qwen2ForCausalLM", attention_bias=True),
    "qwen3": Family("Qwen3ForCausalLM", qk_norm=True),
}
ROPE_KINDS: tuple[RopeKind, ...] = ("default", "linear", "llama3", "yarn", "proportional")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        BundleError: The file is missing or holds something else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BundleError(str(path), f"cannot be read ({error.strerror or error})", "Check the path.") from error
    except ValueError as error:
        raise BundleError(str(path), "is not JSON", "Download the file again.") from error
    if not isinstance(value, dict):
        raise BundleError(str(path), "is not a JSON object", "Download the file again.")
    return value


def whole(config: Config, key: str, where: str, default: int | None = None) -> int:
    """A whole number above 0 of a config.

    Raises:
        CheckpointError: It is missing without a default, or is something else. `where` names the file.
    """
    value = config.get(key)
    if value is None and default is not None:
        return default
    if type(value) is not int or value <= 0:
        raise CheckpointError(f"{where}: {key} is {value!r}, not a whole number above 0.", "Correct the file.")
    return value


def number(config: Config, key: str, where: str, default: float | None = None) -> float:
    """A number above 0 of a config; raises as `whole` does."""
    value = config.get(key)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise CheckpointError(f"{where}: {key} is {value!r}, not a number above 0.", "Correct the file.")
    return float(value)


def read_rope(config: Config, where: str, layer: LayerType = "full", theta: float = 10000.0) -> Rope:
    """Rotary positions of a config: `rope_parameters` first, then `rope_scaling`, then `rope_theta`, then `theta`.

    Settings may stand under "full_attention" and "sliding_attention"; `layer` says which are meant. Beside settings
    for all layers a `rope_local_base_freq` is the sliding ones' plain theta (Gemma 3).

    Raises:
        CheckpointError: The kind is unknown or lacks a number.
    """
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    by_layer = isinstance(scaling, dict) and any(isinstance(value, dict) for value in scaling.values())
    if by_layer:
        scaling = scaling.get(f"{layer}_attention")
    elif layer == "sliding" and "rope_local_base_freq" in config:
        return Rope(theta=number(config, "rope_local_base_freq", where))
    if not isinstance(scaling, dict):
        what = f"{layer}_attention" if by_layer else "settings"
        raise CheckpointError(f"{where}: the rope {what} {scaling!r} are not an object.", "Correct the file.")
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind not in ROPE_KINDS:
        raise CheckpointError(f"{where}: the rope kind {kind!r} is not known.", f"Known: {', '.join(ROPE_KINDS)}.")
    theta = number(scaling, "rope_theta", where, number(config, "rope_theta", where, theta))
    parts = [part.get("partial_rotary_factor") for part in (scaling, config)]
    parts = [part for part in parts if part is not None]
    if kind == "proportional":
        factor = number(scaling, "factor", where, 1.0)
        return Rope(kind="proportional", theta=theta, factor=factor, partial=_share(parts, where))
    if any(part != 1 for part in parts):
        raise CheckpointError(f"{where}: partial_rotary_factor is not known here.", "Use another checkpoint.")
    if kind == "default":
        return Rope(theta=theta)
    if kind == "linear":
        return Rope(kind="linear", theta=theta, factor=number(scaling, "factor", where))
    return _read_llama3(scaling, theta, where) if kind == "llama3" else _read_yarn(config, scaling, theta, where)


def _share(parts: list[Any], where: str) -> float:
    """The first of the shares that a config gives, 0..1; without one, 1."""
    share = parts[0] if parts else 1.0
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise CheckpointError(f"{where}: partial_rotary_factor is {share!r}, not within 0..1.", "Correct the file.")
    return float(share)


def _read_llama3(scaling: Config, theta: float, where: str) -> Rope:
    return Rope(
        kind="llama3",
        theta=theta,
        factor=number(scaling, "factor", where),
        low_freq_factor=number(scaling, "low_freq_factor", where),
        high_freq_factor=number(scaling, "high_freq_factor", where),
        original_max_position=whole(scaling, "original_max_position_embeddings", where),
    )


def _read_yarn(config: Config, scaling: Config, theta: float, where: str) -> Rope:
    """Without an attention_factor it is 0.1 ln(factor) + 1 (YaRN, 2023), or the ratio of two such with the weights
    `mscale` and `mscale_all_dim`."""
    longest = config.get("max_position_embeddings")
    original = whole(scaling, "original_max_position_embeddings", where, longest if type(longest) is int else None)
    known = longest / original if type(longest) is int else None
    factor = number(scaling, "factor", where, known)

    def grown(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    attention = grown(1.0)
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        attention = grown(number(scaling, "mscale", where)) / grown(number(scaling, "mscale_all_dim", where))
    return Rope(
        kind="yarn",
        theta=theta,
        factor=factor,
        original_max_position=original,
        beta_fast=number(scaling, "beta_fast", where, 32.0),
        beta_slow=number(scaling, "beta_slow", where, 1.0),
        attention_factor=number(scaling, "attention_factor", where, attention),
        truncate=scaling.get("truncate") is not False,
    )


def read_target_config(config: Config, tied: bool, where: str) -> TargetConfig:
    """A target's numbers.

    Args:
        config: config.json.
        tied: No lm_head is in the checkpoint. The file's own flag may be stale, so it is not asked.
        where: Names the file in messages.

    Raises:
        CheckpointError: The family or a setting is not known, or a number is missing.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise CheckpointError(f"{where}: the model type {model_type!r} is not known.", f"Known: {', '.join(FAMILIES)}.")
    family = FAMILIES[model_type]
    for key, plain in (("hidden_act", "silu"), ("mlp_bias", False), ("use_sliding_window", False)):
        if config.get(key, plain) not in (plain, None):
            raise CheckpointError(f"{where}: {key} {config[key]!r} is not known here.", "Use another checkpoint.")
    if config.get("attention_bias", family.attention_bias) not in (family.attention_bias, None):
        raise CheckpointError(f"{where}: attention_bias does not fit {model_type}.", "Use another checkpoint.")
    width, heads = whole(config, "hidden_size", where), whole(config, "num_attention_heads", where)
    return TargetConfig(
        family=model_type,
        vocab_size=whole(config, "vocab_size", where),
        hidden_size=width,
        intermediate_size=whole(config, "intermediate_size", where),
        num_layers=whole(config, "num_hidden_layers", where),
        num_heads=heads,
        num_kv_heads=whole(config, "num_key_value_heads", where, heads),
        head_dim=whole(config, "head_dim", where, width // heads),
        rms_eps=number(config, "rms_norm_eps", where, 1e-6),
        rope=read_rope(config, where),
        max_position=whole(config, "max_position_embeddings", where, 2048),
        tie_embeddings=tied,
        qk_norm=family.qk_norm,
        attention_bias=family.attention_bias,
    )


def rope_json(rope: Rope) -> dict[str, Any]:
    """The `rope_parameters` object of a config.json."""
    values: dict[str, Any] = {"rope_type": rope.kind, "rope_theta": rope.theta}
    if rope.kind != "default":
        values["factor"] = rope.factor
    if rope.kind in ("llama3", "yarn"):
        values["original_max_position_embeddings"] = rope.original_max_position
    if rope.kind == "llama3":
        values |= {"low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor}
    if rope.kind == "yarn":
        values |= {"beta_fast": rope.beta_fast, "beta_slow": rope.beta_slow, "truncate": rope.truncate}
        values["attention_factor"] = rope.attention_factor
    if rope.kind == "proportional":
        values["partial_rotary_factor"] = rope.partial
    return values


def target_config_json(config: TargetConfig, quantization: Quantization | None) -> dict[str, Any]:
    """config.json of a target, with the keys that Hugging Face and MLX programs read."""
    rope = rope_json(config.rope)
    values: dict[str, Any] = {
        "architectures": [FAMILIES[config.family].architecture],
        "model_type": config.family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_eps,
        "rope_theta": config.rope.theta,
        "rope_parameters": rope,
        "max_position_embeddings": config.max_position,
        "tie_word_embeddings": config.tie_embeddings,
        "attention_bias": config.attention_bias,
    }
    if config.rope.kind != "default":
        values["rope_scaling"] = rope
    if quantization is not None:
        values["quantization"] = quantization_json(quantization)
    return values


def quantization_json(quantization: Quantization) -> dict[str, Any]:
    """The `quantization` object of an MLX config.json."""
    values: dict[str, Any] = {"group_size": quantization.group_size, "bits": quantization.bits, "mode": "affine"}
    for path, _, _ in quantization.overrides:
        group, bits = group_and_bits(quantization, path)
        values[path] = {"group_size": group, "bits": bits}
    return values
