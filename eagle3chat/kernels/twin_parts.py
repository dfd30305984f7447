"""The plain twins of `cpu_parts`: the same arguments and numbers, made of torch's operations in float64."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor


class PlainRowNorm:
    """See `cpu_parts.RowNorm`."""

    def __init__(self, weight: Tensor, eps: float, dtype: torch.dtype) -> None:
        self.weight, self.eps, self.dtype = weight.double(), eps, dtype

    def __call__(self, x: Tensor) -> Tensor:
        """[M, width] -> [M, width]."""
        wide = x.double()
        return (wide / (wide.square().mean(-1, keepdim=True) + self.eps).sqrt() * self.weight).to(self.dtype)

    def add(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """x + y, rounded to their dtype, and its norm."""
        total = (x.double() + y.double()).to(self.dtype)
        return total, self(total)


class PlainGate:
    """See `cpu_parts.Gate`."""

    def __init__(self, width: int, activation: Literal["silu", "gelu_tanh"], dtype: torch.dtype) -> None:
        self.width, self.gelu, self.dtype = width, activation == "gelu_tanh", dtype

    def __call__(self, gate_up: Tensor) -> Tensor:
        """[M, 2 * width]: gate, up -> [M, width]."""
        gate, up = gate_up.double().chunk(2, -1)
        gate = F.gelu(gate, approximate="tanh") if self.gelu else F.silu(gate)
        return (gate * up).to(self.dtype)
