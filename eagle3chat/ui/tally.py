"""What the rounds of one reply add up to, while they arrive. The same counts as `Usage`, which ends a reply."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from eagle3chat.engine.events import Burst, Round, Told, Usage

RECENT = 24  # rounds that the sparkline can show


@dataclass(slots=True)
class Tally:
    """Counts and seconds so far. Tested drafts are accepted + rejected."""

    rounds: int = 0
    emitted: int = 0
    accepted: int = 0
    rejected: int = 0
    unreached: int = 0
    seconds: float = 0.0
    drafted_at: list[int] = field(default_factory=list)  # rounds in which there was a draft at this place
    reached_at: list[int] = field(default_factory=list)  # rounds in which the draft at this place was judged
    accepted_at: list[int] = field(default_factory=list)  # rounds in which it was accepted
    why: str = ""  # the last round's chain had its length, where it finds it itself
    recent: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=RECENT))  # accepted of drafted
    bursts: int = 0  # pieces of text of a server, which are no rounds
    uncounted: bool = False  # there are tokens that nobody counted
    largest: int = 0  # tokens of a piece
    told: Told | None = None  # what the server said of the reply at its end

    def add(self, round_: Round) -> None:
        """Count a round."""
        if round_.burst is not None:
            self._add_burst(round_.burst, round_.seconds)
            return
        rejected = int(round_.rejected is not None)
        self.rounds += 1
        self.emitted += round_.emitted
        self.accepted += round_.accepted
        self.rejected += rejected
        self.why = round_.why
        self.unreached += len(round_.unreached)
        self.seconds += round_.seconds
        self.recent.append((round_.accepted, len(round_.drafted)))
        missing = len(round_.drafted) - len(self.reached_at)
        self.drafted_at.extend([0] * missing)
        self.reached_at.extend([0] * missing)
        self.accepted_at.extend([0] * missing)
        for place in range(len(round_.drafted)):
            self.drafted_at[place] += 1
        for place in range(round_.accepted + rejected):
            self.reached_at[place] += 1
        for place in range(round_.accepted):
            self.accepted_at[place] += 1

    def _add_burst(self, burst: Burst, seconds: float) -> None:
        self.bursts += 1
        self.seconds += seconds
        self.emitted += burst.tokens or 0
        self.uncounted |= burst.tokens is None
        self.recent.append((burst.tokens or 0, 0))
        self.largest = max(self.largest, burst.tokens or 0)

    @property
    def chain(self) -> int | None:
        """Tokens that the last rounds drafted, on average; None without rounds."""
        return round(sum(drafted for _, drafted in self.recent) / len(self.recent)) if self.rounds else None

    @property
    def longest(self) -> int:
        """Tokens that a round drafted, at most; 0 without a draft."""
        return len(self.drafted_at)

    @property
    def tau(self) -> float:
        """Emitted tokens / rounds; 0 without rounds."""
        return self.emitted / self.rounds if self.rounds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens / seconds of the rounds, on the engine's clock; 0 without rounds."""
        return self.emitted / self.seconds if self.seconds > 0 else 0.0

    @property
    def conditional(self) -> list[float | None]:
        """Accepted / judged at each place; None where none was judged."""
        return [a / r if r else None for a, r in zip(self.accepted_at, self.reached_at, strict=True)]

    def usage(self, last: Usage) -> Usage:
        """The usage of a reply in several stretches, of which `last` is the last one's; a server's as it is."""
        if last.told is not None:
            return last
        begun = self.emitted - last.generated_tokens
        return Usage(
            prompt_tokens=last.prompt_tokens - begun,
            reused_tokens=min(last.reused_tokens, last.prompt_tokens - begun),
            generated_tokens=self.emitted,
            rounds=self.rounds,
            accepted=self.accepted,
            rejected=self.rejected,
            unreached=self.unreached,
            reached_at=tuple(self.reached_at),
            accepted_at=tuple(self.accepted_at),
            drafted_at=tuple(self.drafted_at),
            prefill_seconds=last.prefill_seconds,
            decode_seconds=self.seconds,
            first_token_seconds=last.first_token_seconds,
        )
