"""Rotary positions: the angles of a model, and their application to q and k in one go.

Half-split ("NeoX") rotation: column j turns with column j + d/2. Knows no cache and no layer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3chat.engine.config import Rope
from eagle3chat.engine.errors import BackendError


def frequencies(rope: Rope, head_dim: int) -> Tensor:
    """Float64 [head_dim / 2], radians a position.

    Sources: RoFormer (2021); "llama3" as in Llama 3.1's reference: long waves are slowed by `factor`, short
    ones kept, those between blended; "linear": every wave slowed.

    Raises:
        BackendError: The kind is not one of default, linear, llama3.
    """
    own = rope.theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    if rope.kind == "default":
        return own
    if rope.kind == "linear":
        return own / rope.factor
    if rope.kind == "llama3":
        turns = rope.original_max_position * own / (2 * math.pi)  # in the context it was trained with
        kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        kept = kept.clamp(0.0, 1.0)
        return own * (kept + (1.0 - kept) / rope.factor)
    raise BackendError(
        f"This model turns its positions with '{rope.kind}' rope, which the torch backend does not know.",
        "Use a model with default, linear or llama3 rope.",
    )


@dataclass(frozen=True, slots=True)
class Turn:
    """The rotation of some positions, for q, k and v side by side: [M, heads + 2 kv, d]; v is left as it is."""

    cos: Tensor
    sin: Tensor

    def __call__(self, qkv: Tensor) -> Tensor:
        """Rotate [M, heads + 2 kv, d]. Three operations, whatever the number of heads."""
        return torch.addcmul(qkv * self.cos, qkv.roll(qkv.shape[-1] // 2, -1), self.sin)


class Angles:
    """Cosines and sines of every position that the cache can hold.

    Args:
        turned: Heads that turn (q and k).
        kept: Heads that do not (v).
        length: Positions.
    """

    def __init__(
        self, rope: Rope, head_dim: int, turned: int, kept: int, length: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        angle = torch.arange(length, dtype=torch.float64)[:, None] * frequencies(rope, head_dim)
        cos, sin = angle.cos(), angle.sin()
        still = torch.zeros(length, head_dim, dtype=torch.float64)
        # [length, 2, d]: what turns, what does not. The first half's sine is negative, see `Turn`.
        self.cos = torch.stack((torch.cat((cos, cos), -1), still + 1.0), 1).to(device, dtype)
        self.sin = torch.stack((torch.cat((-sin, sin), -1), still), 1).to(device, dtype)
        self.which = torch.tensor([0] * turned + [1] * kept, device=device)

    def at(self, start: int, rows: int) -> Turn:
        """The rotation of positions start .. start + rows - 1."""
        span = slice(start, start + rows)
        return Turn(self.cos[span].index_select(1, self.which), self.sin[span].index_select(1, self.which))
