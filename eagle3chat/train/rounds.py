"""Counts of rounds: what a draft's tokens came to. Knows no tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rounds:
    """Counts over some replies. Place j is the (j + 1)-th token of a chain.

    Args:
        tokens: Emitted.
        rounds: Of them.
        judged: By place, how often the target looked at it; a token after a rejected one is not judged.
        accepted: By place.
    """

    tokens: int
    rounds: int
    judged: tuple[int, ...]
    accepted: tuple[int, ...]

    @staticmethod
    def none(chain: int) -> Rounds:
        """No rounds yet, for chains of that length."""
        return Rounds(0, 0, (0,) * chain, (0,) * chain)

    def __add__(self, other: Rounds) -> Rounds:
        return Rounds(
            self.tokens + other.tokens,
            self.rounds + other.rounds,
            tuple(a + b for a, b in zip(self.judged, other.judged, strict=True)),
            tuple(a + b for a, b in zip(self.accepted, other.accepted, strict=True)),
        )

    @property
    def tau(self) -> float:
        """Emitted tokens / rounds; 0 without rounds."""
        return self.tokens / self.rounds if self.rounds else 0.0

    @property
    def acceptance(self) -> tuple[float, ...]:
        """Accepted / judged by place; 0 where nothing was judged."""
        return tuple(a / j if j else 0.0 for a, j in zip(self.accepted, self.judged, strict=True))


def walk(hits: Sequence[Sequence[bool]], tokens: int, limit: int | None = None) -> Rounds:
    """The rounds of a reply of that many tokens.

    Args:
        limit: Most tokens that the reply might have had; what could not be emitted is not drafted. None: any number.
        hits: hits[j][r]: whether place j of a chain whose first token is reply token r would be the reply's token.
    """
    chain = len(hits)
    judged, accepted = [0] * chain, [0] * chain
    place = count = 0
    while place < tokens:
        taken = 0
        drafted = chain if limit is None else min(chain, limit - place - 1)
        while taken < drafted and place + taken < tokens:
            judged[taken] += 1
            if not hits[taken][place]:
                break
            accepted[taken] += 1
            taken += 1
        place += taken + 1
        count += 1
    return Rounds(tokens, count, tuple(judged), tuple(accepted))
