"""Rotary positions in MLX. Half-split ("NeoX") rotation: column j turns with column j + d/2. Knows no cache."""

from __future__ import annotations

import math

import mlx.core as mx

from eagle3chat.engine.config import Rope
from eagle3chat.engine.errors import BackendError


def speeds(rope: Rope, head_dim: int) -> list[float]:
    """Radians a position of each pair of columns, [head_dim / 2].

    Sources: RoFormer (2021); "linear": every wave is slowed (position interpolation, 2023); "llama3": long waves are
    slowed, short ones kept, those between blended, as in Llama 3.1's reference; "yarn" (2023): the same by column.

    Raises:
        BackendError: The kind is none of these, or only a part of the columns turns.
    """
    if rope.kind not in ("default", "linear", "llama3", "yarn") or rope.partial != 1.0:
        share = "" if rope.partial == 1.0 else f" of {rope.partial:g} of the columns"
        raise BackendError(
            f"This draft turns its positions with '{rope.kind}' rope{share}, which the MLX backend does not know.",
            "Use a draft with default, linear, llama3 or yarn rope.",
        )
    half = head_dim // 2
    own = [rope.theta ** (-2.0 * j / head_dim) for j in range(half)]
    if rope.kind == "default":
        return own
    kept = [0.0] * half
    if rope.kind == "llama3":
        kept = [_llama3_kept(rope, speed) for speed in own]
    elif rope.kind == "yarn":
        kept = _yarn_kept(rope, head_dim)
    return [speed * (k + (1.0 - k) / rope.factor) for speed, k in zip(own, kept, strict=True)]


def _llama3_kept(rope: Rope, speed: float) -> float:
    """How much of a speed is kept: by its turns within the context that the model was trained with."""
    turns = rope.original_max_position * speed / (2.0 * math.pi)
    share = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    return min(max(share, 0.0), 1.0)


def _yarn_kept(rope: Rope, head_dim: int) -> list[float]:
    """How much of each speed is kept: falls from the column of `beta_fast` turns to that of `beta_slow`."""

    def column(turns: float) -> float:
        wave = rope.original_max_position / (turns * 2.0 * math.pi)
        return head_dim * math.log(wave) / (2.0 * math.log(rope.theta))

    low, high = column(rope.beta_fast), column(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0.0), min(high, head_dim - 1.0)
    if low == high:
        high += 0.001
    return [1.0 - min(max((j - low) / (high - low), 0.0), 1.0) for j in range(head_dim // 2)]


class Turn:
    """The rotation of heads [1, heads, M, d] at consecutive positions.

    `scale`: what the scores of rotated queries and keys are to be multiplied by, since yarn stretches both.
    """

    def __init__(self, rope: Rope, head_dim: int) -> None:
        self._dims = head_dim
        self._waves = mx.array([1.0 / speed for speed in speeds(rope, head_dim)])
        self.scale = rope.attention_factor**2

    def __call__(self, x: mx.array, start: int) -> mx.array:
        """x at positions start .. start + M - 1."""
        return mx.fast.rope(x, self._dims, traditional=False, base=None, scale=1.0, offset=start, freqs=self._waves)
