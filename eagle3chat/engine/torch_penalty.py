"""Penalties on a device: which tokens a conversation has so far, and what that takes from logits.

The same function as `engine.sampling.penalised`. The host keeps the committed ids; a device sees them once a penalty
is on, and from then on only the new ones. Drafted tokens are counted in copies, so a rejected one leaves no trace.
Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.torch_device import upload


@dataclass(frozen=True, slots=True)
class Counts:
    """What the tokens before a row are, over a vocabulary."""

    prompt: Tensor  # bool [V]: the prompt has it
    reply: Tensor  # float32 [V] or [R, V]: how often the reply has it

    def at(self, ids: Tensor) -> Counts:
        """A copy for the target ids [Vd] of another vocabulary."""
        return Counts(self.prompt[ids], self.reply[ids])

    def add(self, place: Tensor) -> None:
        """One more of the token at `place` [1], in this copy."""
        self.reply.index_add_(0, place, self.reply.new_ones(1))

    def rows(self, drafted: Tensor) -> Counts:
        """A copy for the rows of a verification: row i has the drafted tokens [K] before it as well, [K+1, V]."""
        chain = drafted.shape[0]
        before = self.reply.new_ones(chain + 1, chain).tril_(-1)
        reply = self.reply.repeat(chain + 1, 1)
        return Counts(self.prompt, reply.scatter_add_(1, drafted.expand(chain + 1, chain), before))


class Said:
    """The tokens of one conversation.

    Args:
        vocabulary: V.
    """

    def __init__(self, vocabulary: int, device: torch.device) -> None:
        self._vocabulary, self._device = vocabulary, device
        self.begin(())

    def begin(self, prompt: Sequence[int]) -> None:
        """A new prompt, and no reply yet."""
        self._prompt = tuple(prompt)
        self._reply: list[int] = []
        self._counted = 0  # tokens of the reply that `_counts` has
        self._counts: Counts | None = None

    def add(self, tokens: Sequence[int]) -> None:
        """Committed tokens of the reply."""
        self._reply.extend(tokens)

    def counts(self, sampling: Sampling) -> Counts | None:
        """Of all committed tokens; None: no penalty is on. Valid until the next call, and not to be written to."""
        if not sampling.penalises:
            return None
        if self._counts is None:
            prompt = torch.zeros(self._vocabulary, dtype=torch.bool, device=self._device)
            prompt.index_fill_(0, upload(self._prompt, torch.int64, self._device), True)
            self._counts = Counts(prompt, torch.zeros(self._vocabulary, device=self._device))
        if fresh := self._reply[self._counted :]:
            ids = upload(fresh, torch.int64, self._device)
            self._counts.reply.index_add_(0, ids, self._counts.reply.new_ones(len(fresh)))
            self._counted = len(self._reply)
        return self._counts


def penalised(logits: Tensor, counts: Counts, sampling: Sampling) -> Tensor:
    """Float32 logits [R, V] after penalties; see `engine.sampling.penalised`."""
    present = counts.reply > 0
    if sampling.repetition != 1.0:
        changed = torch.where(logits > 0, logits / sampling.repetition, logits * sampling.repetition)
        logits = torch.where(counts.prompt | present, changed, logits)
    if sampling.presence != 0.0:
        logits = torch.sub(logits, present.float(), alpha=sampling.presence)
    if sampling.frequency != 0.0:
        logits = torch.sub(logits, counts.reply, alpha=sampling.frequency)
    return logits
