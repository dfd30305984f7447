"""How long the next chain should be: the length with the most expected tokens a second, from what rounds cost and kept.

For backends whose draft tells its probabilities only with the target's verdict; for the others see `stopping`.

A round with a chain of K costs c(K) seconds and gives E(K) = 1 + a1 + a1 a2 + .. tokens, where ai is the share of
drafted tokens at place i that the target accepts when it judges them. Both are measured on the rounds as they run;
now and then a round has another length than the best one, so that its neighbours stay known. With 0 the draft is
asked again ever more rarely. The text does not depend on any of it. Knows no tensors, no text and no clock.
"""

from __future__ import annotations

from eagle3chat.engine.costs import Costs
from eagle3chat.engine.plan import Plan, Seen

MEMORY = 0.98  # weight of what was known of a place when a new judgement comes
DOUBT = 4.0  # judgements that the guess counts for
GUESS = 0.5  # acceptance of the first place, before anything was judged; of the others: that of the place before
FIRST = 3  # the length that a new pair begins with
OPENING = (FIRST, 0, 1, FIRST, 0, FIRST)  # the first rounds: enough to guess the costs
REVIEW = 4  # rounds between two decisions
MARGIN = 1.02  # by how much another length must be better
PROBE = 24  # rounds between two looks at a neighbour
REST, LONGEST_REST = 32, 512  # rounds without a draft before it is asked again, at first and at most


class Chain:
    """Finds the length by the acceptance at each place; see `Length`.

    Args:
        longest: Tokens that the draft can be asked for; 0: there is none.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._costs = Costs()
        self._kept = [0.0] * longest
        self._judged = [0.0] * longest
        self._opening = [min(length, longest) for length in OPENING] if longest else []
        self._best = min(FIRST, longest)
        self._round = 0
        self._rest = REST
        self._asleep = 0  # rounds since the draft was asked
        self._probing = False
        self._why = "measuring"  # of the best length; made when it is chosen, since a round lasts milliseconds

    @property
    def best(self) -> int:
        """The length in use but for probes."""
        return self._best

    def acceptance(self, place: int) -> float:
        """The estimated share of drafted tokens at a place, from 0, that are accepted when judged."""
        share = GUESS
        for kept, judged in zip(self._kept[: place + 1], self._judged[: place + 1], strict=True):
            share = (kept + share * DOUBT) / (judged + DOUBT)
        return share

    def expected(self, chain: int) -> float:
        """Tokens that a round with this chain gives on average, 1 .. chain + 1."""
        total = reached = 1.0
        for place in range(chain):
            reached *= self.acceptance(place)
            total += reached
        return total

    def rate(self, chain: int) -> float:
        """Expected tokens a second."""
        return self.expected(chain) / self._costs.of(chain)

    def begin(self) -> None:
        """See Length: what is known of the pair stays."""

    def plan(self, *, sampled: bool) -> Plan:
        """See Length."""
        self._probing = False
        if self._longest == 0:
            return Plan(0, "there is no draft")
        if self._opening:
            return Plan(self._opening[0], "measuring")
        if self._best == 0:
            if self._asleep >= self._rest:
                self._probing = True
                return Plan(1, "asking the draft again")
            return Plan(0, self._why)
        if self._round % PROBE == PROBE - 1:
            self._probing = True
            return Plan(self._neighbour(), "looking at a neighbour")
        return Plan(self._best, self._why)

    def _neighbour(self) -> int:
        """One longer, one shorter and none in turns, inside the limits."""
        turn = self._round // PROBE % 3
        if turn == 2:
            return 0
        step = 1 if turn == 0 else -1
        return self._best + step if self._best + step <= self._longest else self._best - step

    def _reason(self) -> str:
        """Expected tokens and the gain over plain decoding."""
        gain = self.rate(self._best) / self.rate(0)
        if self._best == 0:
            return "drafting costs more than it brings"
        return f"{self.expected(self._best):.2f} tokens a round, {gain:.2f} x plain"

    def saw(self, seen: Seen) -> None:
        """See Length."""
        drafted, accepted = len(seen.p), seen.accepted
        self._costs.saw(drafted, seen.seconds)
        for place in range(seen.judged):
            self._kept[place] = MEMORY * self._kept[place] + (place < accepted)
            self._judged[place] = MEMORY * self._judged[place] + 1.0
        if self._opening:
            self._opening.pop(0)
            if not self._opening:
                self._decide()
            return
        self._round += 1
        if self._best == 0:
            self._asked(drafted, accepted)
        elif self._probing or self._round % REVIEW == 0:
            self._decide()

    def _asked(self, drafted: int, accepted: int) -> None:
        """After a round while drafting is off: a draft that was right is asked sooner again, a wrong one later."""
        if drafted == 0:
            self._asleep += 1
            return
        self._asleep = 0
        self._rest = REST if accepted else min(2 * self._rest, LONGEST_REST)
        self._decide()

    def _decide(self) -> None:
        rates = [self.rate(chain) for chain in range(self._longest + 1)]
        best = max(range(self._longest + 1), key=rates.__getitem__)
        if rates[best] > MARGIN * rates[self._best]:
            self._best = best
            self._asleep = 0
            self._rest = REST
        self._why = self._reason()
