"""Rotary positions: the angles of a model, and their application to q and k in one go.

Half-split ("NeoX") rotation: column j turns with column j + d/2. Knows no cache and no layer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3chat.engine.config import Rope, RopeKind
from eagle3chat.engine.errors import BackendError

BLOCK = 4096  # positions
KINDS: tuple[RopeKind, ...] = ("default", "linear", "llama3", "yarn", "proportional")


def frequencies(rope: Rope, head_dim: int) -> Tensor:
    """Float64 [head_dim / 2], radians a position; column j turns with column j + head_dim / 2 at speed j.

    Sources: RoFormer (2021); "linear": every wave slowed by `factor` (position interpolation, 2023); "llama3" as in
    Llama 3.1's reference: long waves are slowed, short ones kept, those between blended; "yarn" (2023): the same by
    column instead of by wave; "proportional" (Gemma 4): the first `partial` of the columns turn, the others stand.

    Raises:
        BackendError: The kind is not one of these, or has `partial` without knowing it.
    """
    if rope.kind not in KINDS or (rope.partial != 1.0 and rope.kind != "proportional"):
        share = "" if rope.partial == 1.0 else f" of {rope.partial:g} of the columns"
        raise BackendError(
            f"This model turns its positions with '{rope.kind}' rope{share}, which the torch backend does not know.",
            f"Use a model with {', '.join(KINDS[:-1])} or {KINDS[-1]} rope.",
        )
    own = rope.theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    if rope.kind == "default":
        return own
    if rope.kind == "linear":
        return own / rope.factor
    if rope.kind == "proportional":
        turned = int(rope.partial * head_dim / 2)
        return torch.cat((own[:turned] / rope.factor, torch.zeros_like(own[turned:])))
    kept = _llama3_kept(rope, own) if rope.kind == "llama3" else _yarn_kept(rope, head_dim)
    return own * (kept + (1.0 - kept) / rope.factor)


def _llama3_kept(rope: Rope, own: Tensor) -> Tensor:
    """How much of each speed is kept, 0..1: by the turns within the context that the model was trained with."""
    turns = rope.original_max_position * own / (2 * math.pi)
    kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    return kept.clamp(0.0, 1.0)


def _yarn_kept(rope: Rope, head_dim: int) -> Tensor:
    """How much of each speed is kept, 0..1: falls from the column of `beta_fast` turns to that of `beta_slow`."""

    def column(turns: float) -> float:
        return head_dim * math.log(rope.original_max_position / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = column(rope.beta_fast), column(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    columns = torch.arange(head_dim // 2, dtype=torch.float64)
    return 1.0 - ((columns - low) / (high - low)).clamp(0.0, 1.0)


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
        # [length, 2, d]: what turns, what does not. The first half's sine is negative, see `Turn`.
        self.cos = torch.ones(length, 2, head_dim, dtype=dtype, device=device)
        self.sin = torch.zeros(length, 2, head_dim, dtype=dtype, device=device)
        speeds = frequencies(rope, head_dim)
        for start in range(0, length, BLOCK):  # a long context in float64 at once would be gigabytes
            end = min(start + BLOCK, length)
            angle = torch.arange(start, end, dtype=torch.float64)[:, None] * speeds
            cos, sin = angle.cos() * rope.attention_factor, angle.sin() * rope.attention_factor
            self.cos[start:end, 0] = torch.cat((cos, cos), -1).to(device, dtype)
            self.sin[start:end, 0] = torch.cat((-sin, sin), -1).to(device, dtype)
        self.which = torch.tensor([0] * turned + [1] * kept, device=device)

    def at(self, start: int, rows: int) -> Turn:
        """The rotation of positions start .. start + rows - 1."""
        span = slice(start, start + rows)
        return Turn(self.cos[span].index_select(1, self.which), self.sin[span].index_select(1, self.which))

    def of(self, positions: Tensor) -> Turn:
        """The rotation of positions [M] that the device knows."""
        cos, sin = self.cos.index_select(0, positions), self.sin.index_select(0, positions)
        return Turn(cos.index_select(1, self.which), sin.index_select(1, self.which))
