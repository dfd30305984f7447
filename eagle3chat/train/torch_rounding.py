"""A draft's weights as an int4 pair keeps them: head and MLP in 4 bits by groups of 32.

Trained with these, a draft learns to do without what rounding takes. Gradients pass straight through to the masters
(Bengio, Leonard, Courville 2013). What rounding does is found anew every few updates: it costs as much as an update's
arithmetic would, and late in a run weights move little. Knows no schedule.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from eagle3chat.kernels.cpu_linear import BLOCK, four_bit
from eagle3chat.train.torch_head import HEAD, MLP

EVERY = 8  # updates
NAMES = (HEAD, *(f"{MLP}.{name}_proj.weight" for name in ("gate", "up", "down")))


def rounded(weight: Tensor) -> Tensor:
    """Float32 [N, K]: a weight after 4 bits, as the engine makes them."""
    codes, scales, biases = four_bit(weight)
    groups = codes.float().view(len(codes), -1, BLOCK)
    return (groups * scales[..., None] + biases[..., None]).view(weight.shape)


class Rounding:
    """Adds to weights what rounding does to them.

    Args:
        dtype: That is computed in.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._found = -1
        self._errors: dict[str, Tensor] = {}

    def __call__(self, masters: Mapping[str, Tensor], updates: int) -> dict[str, Tensor]:
        """The weights to compute with after so many updates."""
        if self._found < 0 or updates - self._found >= EVERY:
            self._found = updates
            for name in NAMES:
                if name in masters and masters[name].shape[1] % BLOCK == 0:
                    self._errors[name] = rounded(masters[name]) - masters[name]
        return {
            name: (value + self._errors[name] if name in self._errors else value).to(self._dtype)
            for name, value in masters.items()
        }
