"""A chain that ends where the draft is unsure: for backends that see its probabilities before the target is asked.

A token is verified when the chance that it is accepted, and all before it, pays for one more row of the target: when
chance > tokens a second * seconds of the row. How often which probability is accepted, and what a row costs, is
measured on the rounds as they run. When the last rounds together brought no more than plain decoding would have, the
draft rests for some rounds. The text does not depend on any of it. Knows no tensors, no text and no clock.
"""

from __future__ import annotations

from collections.abc import Sequence

from eagle3chat.engine.backend import Worth
from eagle3chat.engine.confidence import Confidence
from eagle3chat.engine.costs import Costs
from eagle3chat.engine.plan import Plan

LONGEST, LONGEST_SAMPLED = 6, 3  # more was not worth it where rows cost anything
YOUNG = 12.0  # rounds with a draft until the longest chain: it may be sure and wrong
PLAIN = -1  # the length, for costs, of a round without a draft; 0 is one whose only proposal was not worth it
OPENING = (1, 4)  # rounds of a pair's life without a draft: its cost must be known
REVIEW = 8  # rounds between two looks at all that was measured
LOOK = 128  # rounds between two that look at the cost of plain decoding
SLOW, SLOW_WEIGHT = 0.99, 20.0  # memory of the pace, and rounds that the first guess counts for
FAST, FAST_WEIGHT = 0.93, 6.0  # memory of what decides on a rest, and rounds that the pace counts for at a reply
WOKEN = 6.0  # rounds that a little gain counts for after a rest
GUESS = 1.3  # gain over plain decoding, before it was measured
REST, LONGEST_REST = 4, 512  # rounds without a draft, the first time in a row and at most


class Stopping:
    """Finds the length by each proposal's probability; see `Length`.

    Args:
        longest: Tokens that the draft can be asked for, 1 or more.
    """

    def __init__(self, longest: int) -> None:
        self._longest = min(longest, LONGEST)
        self._costs = Costs()
        self._confidence = {sampled: Confidence(sampled=sampled) for sampled in (False, True)}
        self._sampled = False
        self._planned = 0
        self._rounds = 0
        self._tokens = GUESS * SLOW_WEIGHT  # of the last rounds with a draft ..
        self._spent = SLOW_WEIGHT  # .. and what they cost, in rounds of plain decoding
        self._drafted, self._drafting = 0.0, 0.0
        self._late_tokens = self._late_spent = 0.0
        self._rest, self._resting = REST, 0
        self._why = "measuring"
        self._seen: list[tuple[int, float, bool, Sequence[float], int]] = []  # since the last review
        self._warm = False
        self._needed: list[float] = []
        self._spends: list[float] = []
        self._review()
        self.begin()

    @property
    def gain(self) -> float:
        """Tokens for the cost of a plain round, lately."""
        return self._tokens / self._spent

    def begin(self) -> None:
        """See Length."""
        self._late_spent = FAST_WEIGHT
        self._late_tokens = FAST_WEIGHT * max(self.gain, 1.15)
        self._rest, self._resting = REST, 0

    def plan(self, *, sampled: bool) -> Plan:
        """See Length."""
        self._sampled = sampled
        if self._rounds in OPENING or self._rounds % LOOK == LOOK - 1:
            self._planned = 0
            return Plan(0, "measuring")
        if self._resting:
            self._planned = 0
            return Plan(0, "drafting costs more than it brings here")
        short = sampled or self._drafting < YOUNG
        self._planned = min(self._longest, LONGEST_SAMPLED if short else LONGEST)
        return Plan(self._planned, self._why, self._worth())

    def _worth(self) -> Worth:
        share, needed = self._confidence[self._sampled].share, self._needed
        chance, place = 1.0, -1

        def worth(p: float) -> bool:
            nonlocal chance, place
            place += 1
            chance *= share(place, p)
            return chance > needed[place]

        return worth

    def saw(self, p: Sequence[float], accepted: int, judged: int, seconds: float) -> None:
        """See Length."""
        self._rounds += 1
        length = len(p) if self._planned else PLAIN
        self._seen.append((length, seconds, self._sampled, p[:judged], accepted))
        if self._planned:
            self._count(len(p), accepted, length)
        elif self._resting:
            self._resting -= 1
        if self._rounds % REVIEW == 0 or self._rounds < REVIEW:
            self._review()

    def _review(self) -> None:
        """Learn from the rounds since the last time; a round lasts milliseconds, so not after each.

        Found is what a token's chance must be at each place, what a round costs in plain ones, and the reason.
        """
        costs = self._costs
        for length, seconds, sampled, p, accepted in self._seen:
            if self._warm:  # the first round pays for what is touched for the first time
                costs.saw(length, seconds)
            self._warm = True
            confidence = self._confidence[sampled]
            for place, share in enumerate(p):
                confidence.saw(place, share, place < accepted)
        self._seen.clear()
        unit = costs.of(PLAIN) if costs.known(PLAIN) else costs.of(0)
        pace = max(self.gain, 1.0) / unit
        self._needed = [pace * costs.more(place, unit) for place in range(self._longest)]
        self._spends = [costs.of(length) / unit for length in range(self._longest + 1)]
        if self._drafting >= 1.0:
            drafted = self._drafted / self._drafting
            self._why = f"as far as the draft is sure, {drafted:.1f} on average; {self.gain:.2f} x plain"

    def _count(self, drafted: int, accepted: int, length: int) -> None:
        """A round with a draft: what it brought, and whether the draft goes on."""
        spent = self._spends[length]
        self._tokens = SLOW * self._tokens + accepted + 1
        self._spent = SLOW * self._spent + spent
        self._drafted = SLOW * self._drafted + drafted
        self._drafting = SLOW * self._drafting + 1.0
        self._late_tokens = FAST * self._late_tokens + accepted + 1
        self._late_spent = FAST * self._late_spent + spent
        if self._late_tokens < self._late_spent:
            self._resting, self._rest = self._rest, min(2 * self._rest, LONGEST_REST)
            self._late_spent = WOKEN
            self._late_tokens = 1.05 * WOKEN
        elif accepted:
            self._rest = REST
