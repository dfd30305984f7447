"""One decoder layer: its parts in their order. Knows no other layer.

Source of the order: Llama (2023) for plain layers; Gemma 3 and 4 (2025, 2026) for what they have besides.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from eagle3chat.engine.torch_cache import KvCache
from eagle3chat.engine.torch_experts import ExpertsBeside, Mixture
from eagle3chat.engine.torch_layers import Attention, GatedMlp, Norm
from eagle3chat.engine.torch_linear import Linear
from eagle3chat.engine.torch_span import Span


class LayerInput:
    """A second input of a layer, of the tokens themselves: x + norm(up(gelu(gate(x)) * input)) (Gemma 4 E).

    Args:
        gate: [P, width]; up: [width, P].
    """

    def __init__(self, gate: Linear, up: Linear, norm: Norm) -> None:
        self.gate, self.up, self.norm = gate, up, norm
        self.nbytes = gate.nbytes + up.nbytes

    def __call__(self, x: Tensor, given: Tensor) -> Tensor:
        """x [M, width], given [M, P] -> [M, width]."""
        gated = F.gelu(self.gate(x), approximate="tanh") * given
        return x + self.norm(self.up(gated))


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer. Its parts after the MLP are those that plain layers do not have."""

    input_norm: Norm
    attention: Attention
    post_norm: Norm  # before the MLP
    mlp: GatedMlp | Mixture
    attention_norm: Norm | None = None  # of what the attention adds
    mlp_norm: Norm | None = None  # of what the MLP adds
    experts: ExpertsBeside | None = None
    extra: LayerInput | None = None
    scalar: float = 1.0  # the output is multiplied by it

    @property
    def linears(self) -> tuple[Linear, Linear, Linear, Linear]:
        """In the order of their use."""
        return self.attention.qkv, self.attention.out, self.mlp.gate_up, self.mlp.down

    @property
    def plain(self) -> bool:
        """Whether it is norm, attention, norm, MLP and nothing else."""
        others = (self.attention_norm, self.mlp_norm, self.experts, self.extra)
        return isinstance(self.mlp, GatedMlp) and all(other is None for other in others) and self.scalar == 1.0

    @property
    def mixtures(self) -> list[Mixture]:
        """Its mixtures of experts."""
        beside = [] if self.experts is None else [self.experts.mixture]
        return [*beside, self.mlp] if isinstance(self.mlp, Mixture) else beside

    @property
    def nbytes(self) -> int:
        """Bytes of its matrices."""
        others = sum(0 if other is None else other.nbytes for other in (self.experts, self.extra))
        return self.attention.nbytes + self.mlp.nbytes + others

    def __call__(
        self, x: Tensor, normed: Tensor, cache: KvCache, place: int, span: Span, given: Tensor | None, after: Norm
    ) -> tuple[Tensor, Tensor]:
        """The stream [M, width] after the layer, and its norm by `after`.

        Args:
            x, normed: The stream before it, and its norm by `input_norm`.
            cache, place: What its attention reads.
            given: [M, P], its share of the layers' inputs.
        """
        y = self.attention(normed, cache, place, span)
        x, normed = self.post_norm.add(x, y if self.attention_norm is None else self.attention_norm(y))
        y = self.mlp(normed)
        if self.experts is not None:
            y = self.experts(x, y)
        if self.mlp_norm is not None:
            y = self.mlp_norm(y)
        if self.extra is None and self.scalar == 1.0:
            return after.add(x, y)
        x = x + y
        if self.extra is not None:
            x = self.extra(x, given)
        x = x * self.scalar
        return x, after(x)
