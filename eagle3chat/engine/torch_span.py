"""What all layers of one kind share in a pass: its positions, their rotation, and who may see whom.

A `Span` is of a pass whose place in the caches the host knows; a `FixedSpan` of one that has a `Place`, which the
device alone knows, so that the pass can be recorded. Knows no layer and no cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3chat.engine.torch_rope import Turn

FOLD_ROWS = 16  # passes up to this long fold the heads of a group into the rows; longer ones would need a large mask


@dataclass(frozen=True, slots=True)
class Span:
    """What all layers of one kind share in a pass: its positions, their rotation, and who may see whom."""

    start: int
    rows: int
    turn: Turn | None  # None: the kernels turn
    mask: (
        Tensor | None
    )  # added to the scores, [M, L] or folded [M * group, L], L = start + M - first; None: all see all
    first: int = 0  # the first position that a row sees

    def turned(self, heads: Tensor) -> Tensor:
        """The first heads of [M, heads + 2 kv, d], rotated."""
        count = heads.shape[1]
        return Turn(self.turn.cos.narrow(1, 0, count), self.turn.sin.narrow(1, 0, count))(heads)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pass stands in the caches, when the device alone knows it: a recorded pass has no numbers of the host's.

    Args:
        start: Int64 [1], position of the first row.
        shift: Int64 [1], position of the buffer's first row.
        bound: Rows of the buffer that are looked at; the plain path reads them all, and masks them.
        fused: Whether the GPU's kernel does the attention. It reads no more than the rows see.
    """

    start: Tensor
    shift: Tensor
    bound: int
    fused: bool

    def __add__(self, rows: int | Tensor) -> Place:
        """So many positions later; a tensor is int64 [1]."""
        return Place(self.start + rows, self.shift, self.bound, self.fused)


@dataclass(frozen=True, slots=True)
class FixedSpan:
    """`Span` of a pass at a `Place`."""

    rows: int
    turn: Turn
    slots: Tensor  # int64 [M]: rows of the buffer that the pass writes
    mask: Tensor | None  # [M * group, bound]; None: the GPU's kernel
    bound: int

    turned = Span.turned


def placed_mask(slots: Tensor, bound: int, group: int, dtype: torch.dtype, window: int = 0) -> Tensor:
    """`causal_mask` over the first `bound` rows of a buffer, folded, [M * group, bound]; slots is int64 [M]."""
    ages = slots[:, None] - torch.arange(bound, device=slots.device)
    hidden = (ages < 0) | (ages >= window) if window else ages < 0
    mask = torch.zeros(hidden.shape, dtype=dtype, device=slots.device).masked_fill_(hidden, -torch.inf)
    return mask.repeat_interleave(group, 0)


def causal_mask(
    start: int, rows: int, group: int, dtype: torch.dtype, device: torch.device, window: int = 0
) -> Tensor | None:
    """0 where position start + m may see position j, -inf elsewhere; folded for short passes.

    It sees those up to itself; with a window no more than so many, and columns begin with the first that any row sees.
    """
    if rows == 1:
        return None
    first = max(0, start - window + 1) if window else 0
    before = start - first
    mask = torch.full((rows, before + rows), -torch.inf, dtype=dtype, device=device).triu_(before + 1)
    if window:
        mask += torch.full_like(mask, -torch.inf).tril_(before - window)
    return mask.repeat_interleave(group, 0) if rows <= FOLD_ROWS else mask
