"""Penalties in MLX: which tokens a conversation has so far, and what that takes from logits.

The same function as `engine.sampling.penalised`. The host keeps the committed ids; the device sees them once a
penalty is on, and from then on only the new ones. Drafted tokens are counted in copies, so a rejected one leaves no
trace. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from eagle3chat.engine.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Counts:
    """What the tokens before a row are, over a vocabulary."""

    prompt: mx.array  # bool [V]: the prompt has it
    reply: mx.array  # float32 [V] or [R, V]: how often the reply has it

    def at(self, ids: mx.array) -> Counts:
        """For the target ids [Vd] of another vocabulary."""
        return Counts(self.prompt[ids], self.reply[ids])

    def add(self, place: mx.array) -> Counts:
        """With one more of the token at `place` [1]."""
        return Counts(self.prompt, self.reply + (mx.arange(self.reply.shape[-1]) == place))

    def rows(self, drafted: mx.array) -> Counts:
        """For the rows of a verification: row i has the drafted tokens [K] before it as well, [K+1, V]."""
        hits = (mx.arange(self.reply.shape[-1]) == drafted[:, None]).astype(mx.float32)
        first = mx.zeros_like(self.reply)[None]
        return Counts(self.prompt, self.reply + mx.concatenate((first, mx.cumsum(hits, axis=0))))


class Said:
    """The tokens of one conversation.

    Args:
        vocabulary: V.
    """

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
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
        """Of all committed tokens; None: no penalty is on."""
        if not sampling.penalises:
            return None
        none = mx.zeros(self._vocabulary)
        if self._counts is None:
            self._counts = Counts(none.at[mx.array(self._prompt)].add(1.0) > 0.0, none)
        if fresh := self._reply[self._counted :]:
            self._counts = Counts(self._counts.prompt, self._counts.reply.at[mx.array(fresh)].add(1.0))
            self._counted = len(self._reply)
        return self._counts


def penalised(logits: mx.array, counts: Counts, sampling: Sampling) -> mx.array:
    """Float32 logits [R, V] after penalties; see `engine.sampling.penalised`."""
    present = counts.reply > 0.0
    if sampling.repetition != 1.0:
        changed = mx.where(logits > 0.0, logits / sampling.repetition, logits * sampling.repetition)
        logits = mx.where(counts.prompt | present, changed, logits)
    if sampling.presence != 0.0:
        logits = logits - sampling.presence * present
    if sampling.frequency != 0.0:
        logits = logits - sampling.frequency * counts.reply
    return logits
