"""How a draft is trained: the numbers, and what the learning rate is at a share of the run. Knows no tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass

from eagle3chat.engine.errors import TrainError


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides what a run does, apart from its data and the draft that it starts from.

    Raises:
        TrainError: A number is out of range.
    """

    depth: int = 4  # training-time steps: the longest chain that is trained for
    decay: float = 0.8  # step j's loss counts decay ** j
    hard: float = 0.3  # weight of the target's best token beside its distribution
    learning_rate: float = 8e-4  # at its highest
    warmup: float = 0.02  # share of the run in which it rises
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 0.5  # the gradient's longest length
    batch_tokens: int = 2048  # reply tokens of an update, about
    part_tokens: int = 512  # reply tokens that are computed at once, about
    few_bits: float = 0.0  # share of the run, at its end, that computes with head and MLP as they are in 4 bits
    seed: int = 0

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise TrainError(f"A draft cannot be trained for {self.depth} steps.", "Use 1 or more.")
        if not 0.0 < self.learning_rate < 1.0:
            raise TrainError(f"A learning rate of {self.learning_rate} is out of range.", "Use one such as 8e-4.")
        if not 0.0 <= self.few_bits <= 1.0:
            raise TrainError(f"A share of {self.few_bits:g} is out of range.", "Use --few-bits 0.3 or alike.")
        if self.batch_tokens < 1 or self.part_tokens < 1:
            raise TrainError("An update needs at least one token.", "Use --batch-tokens 2048.")

    @property
    def weights(self) -> tuple[float, ...]:
        """Of each step's loss."""
        return tuple(self.decay**step for step in range(self.depth))

    def rate(self, share: float) -> float:
        """The learning rate when `share` (0..1) of the run is done: a straight rise, then half a cosine to 0."""
        if share < self.warmup:
            return self.learning_rate * max(share, 0.02 * self.warmup) / self.warmup
        rest = min(1.0, (share - self.warmup) / (1.0 - self.warmup))
        return self.learning_rate * 0.5 * (1.0 + math.cos(math.pi * rest))
