"""Rotary positions of a config.json, read and written. Knows no model."""

from __future__ import annotations

import math
from typing import Any

from eagle3chat.engine.config import LayerType, Rope, RopeKind
from eagle3chat.engine.errors import CheckpointError
from eagle3chat.engine.hf_values import OTHER, Config, number, whole

ROPE_KINDS: tuple[RopeKind, ...] = ("default", "linear", "llama3", "yarn", "proportional")
_KNOWN = """
    attention_factor beta_fast beta_slow factor finetuned high_freq_factor low_freq_factor max_position_embeddings
    mscale mscale_all_dim original_max_position_embeddings partial_rotary_factor rope_theta rope_type truncate type
    """
KNOWN = frozenset(_KNOWN.split())


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
    unknown = sorted(key for key, value in scaling.items() if key not in KNOWN and value is not None)
    if unknown:
        raise CheckpointError(f"{where}: the rope setting {unknown[0]} is not known.", OTHER)
    theta = number(scaling, "rope_theta", where, number(config, "rope_theta", where, theta))
    parts = [part.get("partial_rotary_factor") for part in (scaling, config)]
    parts = [part for part in parts if part is not None]
    if kind == "proportional":
        factor = number(scaling, "factor", where, 1.0)
        return Rope(kind="proportional", theta=theta, factor=factor, partial=_share(parts, where))
    if any(part != 1 for part in parts):
        raise CheckpointError(f"{where}: partial_rotary_factor is not known here.", OTHER)
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

    attention = _grown(factor, 1.0)
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        attention = _grown(factor, number(scaling, "mscale", where))
        attention /= _grown(factor, number(scaling, "mscale_all_dim", where))
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


def _grown(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def rope_json(rope: Rope) -> dict[str, Any]:
    """A rope object of a config.json, with the keys that Hugging Face and MLX programs read."""
    values: dict[str, Any] = {"rope_type": rope.kind, "rope_theta": rope.theta}
    if rope.kind not in ("default", "proportional") or rope.factor != 1.0:
        values["factor"] = rope.factor
    if rope.kind in ("llama3", "yarn"):
        values["original_max_position_embeddings"] = rope.original_max_position
    if rope.kind == "llama3":
        values |= {"low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor}
    if rope.kind == "yarn":
        values |= {"beta_fast": rope.beta_fast, "beta_slow": rope.beta_slow, "truncate": rope.truncate}
        values["attention_factor"] = rope.attention_factor
        if rope.factor > 1 and rope.attention_factor != _grown(rope.factor, 1.0):
            # MLX programs do not read attention_factor; they scale by 0.1 * mscale * ln(factor) + 1.
            values["mscale"] = (rope.attention_factor - 1.0) / (0.1 * math.log(rope.factor))
            values["mscale_all_dim"] = 0.0
    if rope.kind == "proportional":
        values["partial_rotary_factor"] = rope.partial
    return values
