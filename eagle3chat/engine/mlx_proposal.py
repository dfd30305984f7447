"""A chain of proposals in MLX: what is waiting to be drafted from, the drafting itself, and its handle.

Nothing here waits for the device: a proposal feeds the next step, and the verification, as an array.
Knows no target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from eagle3chat.engine.mlx_choice import probabilities
from eagle3chat.engine.mlx_draft import DraftHead
from eagle3chat.engine.mlx_penalty import Counts, penalised
from eagle3chat.engine.sampling import Sampling


@dataclass(frozen=True, slots=True)
class MlxDraft:
    """Proposals on their way. `noise` is of positions n .. n+K under `seed`; None: greedy."""

    tokens: mx.array  # int32 [K+1], target ids: the anchor, then the proposals
    p: mx.array  # float32 [K+1], the draft's probability of each proposal; the last one means nothing
    noise: mx.array | None  # float32 [K+1, V]
    seed: int

    @property
    def chain(self) -> int:
        """K."""
        return int(self.tokens.shape[0]) - 1


@dataclass(slots=True)
class Pending:
    """Confirmed rows that the draft has not seen: taps of positions, each with the token after it."""

    taps: list[mx.array] = field(default_factory=list)  # [m, A * Ht] each
    tokens: list[int] = field(default_factory=list)

    def add(self, taps: mx.array, tokens: Sequence[int]) -> None:
        """More rows, one a token."""
        assert taps.shape[0] == len(tokens)
        self.taps.append(taps)
        self.tokens.extend(tokens)

    def take(self) -> tuple[mx.array, list[int]]:
        """All rows; none are pending afterwards."""
        taps = self.taps[0] if len(self.taps) == 1 else mx.concatenate(self.taps)
        tokens = self.tokens
        self.taps, self.tokens = [], []
        return taps, tokens


def propose(
    head: DraftHead,
    anchor: mx.array,
    out: mx.array,
    chain: int,
    sampling: Sampling,
    noise: mx.array | None,
    counts: Counts | None,
) -> tuple[mx.array, mx.array]:
    """Draft a chain after a pass of the head over confirmed rows.

    The draft hears the target's noise and penalties, at the ids that it can say.

    Args:
        anchor: [1], the token of the last confirmed row.
        out: [p, H], the head's output for the confirmed rows.
        noise: Float32 [K+1, V] of the proposals' positions, and one more; None: greedy.
        counts: Of the committed tokens; None: no penalty is on.

    Returns:
        The anchor and the proposals as target ids [K+1], and the draft's probabilities [K+1], the last one 0.
    """
    heard = None if noise is None else mx.take(noise[:chain], head.target_ids, axis=1)
    said = None if counts is None else counts.at(head.target_ids)
    ids, chances = [anchor], []
    for step in range(chain):
        logits, feature = head.propose(out)
        if said is not None:
            logits = penalised(logits, said, sampling)
        scores = logits
        if heard is not None:
            logits = logits / sampling.temperature
            scores = logits / sampling.sharpness + heard[step : step + 1]
        place = mx.argmax(scores, axis=-1)
        chances.append(probabilities(logits)[0, place])
        ids.append(head.target_ids[place])
        if said is not None:
            said = said.add(place)
        if step + 1 < chain:
            out = head.draft(ids[-1], feature)
    return mx.concatenate(ids), mx.concatenate([*chances, mx.zeros(1)])
