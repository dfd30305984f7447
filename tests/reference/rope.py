"""Rotary positions of every kind, pair by pair."""

from __future__ import annotations

import functools
import math

import numpy as np

from eagle3chat.engine.config import Rope
from reference.numbers import Array


def rotate(x: Array, rope: Rope) -> Array:
    """x [heads, n, d] at positions 0..n-1: column j turns with column j + d/2."""
    d = x.shape[-1]
    angles = np.arange(x.shape[1])[:, None] * np.array([speed(rope, j, d) for j in range(d // 2)])
    a, b = x[..., : d // 2], x[..., d // 2 :]
    stretch = rope.attention_factor if rope.kind == "yarn" else 1.0
    cos, sin = np.cos(angles) * stretch, np.sin(angles) * stretch
    return np.concatenate((a * cos - b * sin, b * cos + a * sin), -1)


@functools.cache
def speed(rope: Rope, j: int, d: int) -> float:
    """Radians a position of the pair j of a head of d columns."""
    own = rope.theta ** (-2.0 * j / d)
    if rope.kind == "default":
        return own
    if rope.kind == "linear":
        return own / rope.factor
    if rope.kind == "proportional":
        return own / rope.factor if j < int(rope.partial * d // 2) else 0.0
    if rope.kind == "yarn":
        return _yarn(rope, own, j, d)
    assert rope.kind == "llama3", rope.kind
    return _llama3(rope, own)


def _llama3(rope: Rope, own: float) -> float:
    """Long waves are slowed, short ones kept, those between blended (Llama 3.1's reference code)."""
    wave = 2 * math.pi / own
    if wave > rope.original_max_position / rope.low_freq_factor:
        return own / rope.factor
    if wave < rope.original_max_position / rope.high_freq_factor:
        return own
    smooth = (rope.original_max_position / wave - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    return (1.0 - smooth) * own / rope.factor + smooth * own


def _yarn(rope: Rope, own: float, j: int, d: int) -> float:
    """Peng et al., "YaRN" (2023): a ramp over the pairs, between those that turn `beta_fast` and `beta_slow` times."""

    def pair_of(turns: float) -> float:
        return d * math.log(rope.original_max_position / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair_of(rope.beta_fast), pair_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, d - 1)
    slowed = min(1.0, max(0.0, (j - low) / ((high - low) or 0.001)))
    return own / rope.factor * slowed + own * (1.0 - slowed)
