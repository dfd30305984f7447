"""What the next round drafts, and who says so. Knows no costs and no acceptance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from eagle3chat.engine.backend import Worth
from eagle3chat.engine.quick import quick


@quick
@dataclass(frozen=True, slots=True)
class Plan:
    """The next round's chain, and why, for a person."""

    chain: int  # at most so many tokens
    why: str
    worth: Worth | None = None


@quick
@dataclass(frozen=True, slots=True)
class Seen:
    """A round that ran as planned."""

    p: Sequence[float]  # the draft's, of the tokens that were verified
    accepted: int  # of them
    judged: int  # accepted and rejected ones; the others were not reached
    seconds: float  # of the whole round
    drafting: float  # of them, until the draft came back


class Length(Protocol):
    """Finds the length of chains. `begin` at a reply, `plan` before a round, `saw` after it."""

    def begin(self) -> None:
        """Another reply begins."""

    def plan(self, *, sampled: bool) -> Plan:
        """The next round's; `sampled`: its temperature is above 0."""

    def saw(self, seen: Seen) -> None:
        """A round ran."""
