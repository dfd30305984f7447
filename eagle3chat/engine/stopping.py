"""A chain that ends where the draft is unsure: for backends that see its probabilities before the target is asked.

A token is verified when the chance that it is accepted, and all before it, pays for one more row of the target: when
chance > tokens a second * seconds of the row. The next one is asked for when what is known of it beforehand pays for
the proposal as well. How often which probability is accepted, and what rows and proposals cost, is measured on the
rounds as they run. When the last rounds together brought no more than plain decoding would have, the draft rests for
some rounds. The text does not depend on any of it. Knows no tensors, no text and no clock.
"""

from __future__ import annotations

from eagle3chat.engine.backend import Fate, Worth
from eagle3chat.engine.confidence import Confidence
from eagle3chat.engine.plan import Plan, Seen
from eagle3chat.engine.prices import Prices

LONGEST, LONGEST_SAMPLED = 6, 3  # more was not worth it where rows cost anything
YOUNG = 12.0  # rounds with a draft until the longest chain: it may be sure and wrong
OPENING = range(1, 7)  # rounds of a pair's life without a draft: its cost must be known
REVIEW, RAREST_REVIEW = 8, 24  # rounds between two looks at all that was measured, at first and later
PRICED = 5  # rounds before a look whose costs are taken in
RARE = 4  # rounds of a rest for each one that is looked at
LOOK, LOOKS = 256, 5  # rounds from one look at the cost of plain decoding to the next, and those that it takes
ALONE = 4  # rounds without a draft in a row, of which the last tells what plain decoding costs
SLOW, SLOW_WEIGHT = 0.99, 20.0  # memory of the pace, and rounds that the first guess counts for
FAST, FAST_WEIGHT = 0.95, 3.0  # memory of what decides on a rest, and rounds that the trust counts for at a reply
WOKEN, HOPE = 4.0, 1.05  # rounds that a little gain counts for after a rest, and that gain
GUESS = 1.3  # gain over plain decoding, before it was measured
TRUST = 1.2  # gain that a reply begins with, whatever the others brought: a short one has no time to make up for more
REST, LONGEST_REST = 8, 512  # rounds without a draft, the first time in a row and at most

MEASURING, RESTING = Plan(0, "measuring"), Plan(0, "drafting costs more than it brings here")


class Stopping:
    """Finds the length by each proposal's probability; see `Length`.

    Args:
        longest: Tokens that the draft can be asked for, 1 or more.
    """

    def __init__(self, longest: int) -> None:
        self._longest = min(longest, LONGEST)
        self._prices = Prices(self._longest)
        self._confidence = {sampled: Confidence(sampled=sampled) for sampled in (False, True)}
        self._sampled = False
        self._planned = self._asked = 0
        self._rounds = self._alone = 0  # all, and the last ones without a draft
        self._tokens = GUESS * SLOW_WEIGHT  # of the last rounds with a draft ..
        self._spent = SLOW_WEIGHT  # .. and what they cost, in rounds of plain decoding
        self._drafted, self._drafting = 0.0, 0.0
        self._late_tokens = self._late_spent = 0.0
        self._rest, self._resting = REST, 0
        self._why = "measuring"
        # Since the last review: rounds, proposals, whether sampled, whether they tell what it costs.
        self._new: list[tuple[Seen, int, bool, bool]] = []
        self._warm = False
        self._row_needs: list[float] = []
        self._draft_needs: list[float] = []
        self.begin()

    @property
    def gain(self) -> float:
        """Tokens for the cost of a plain round, lately."""
        return self._tokens / self._spent

    def begin(self) -> None:
        """See Length."""
        self._review()
        self._late_spent = FAST_WEIGHT
        self._late_tokens = FAST_WEIGHT * TRUST
        self._rest, self._resting = REST, 0

    def plan(self, *, sampled: bool) -> Plan:
        """See Length."""
        self._sampled = sampled
        self._planned = self._asked = 0
        if self._rounds in OPENING or self._rounds % LOOK >= LOOK - LOOKS:
            return MEASURING
        if self._resting:
            return RESTING
        short = sampled or self._drafting < YOUNG
        self._planned = min(self._longest, LONGEST_SAMPLED if short else LONGEST)
        return Plan(self._planned, self._why, self._worth())

    def _worth(self) -> Worth:
        confidence = self._confidence[self._sampled]
        rows, drafts = self._row_needs, self._draft_needs
        chance = 1.0

        def worth(p: float) -> Fate:
            nonlocal chance
            place = self._asked
            self._asked += 1
            chance *= confidence.share(place, p)
            if chance <= rows[place]:
                return Fate.DROPPED
            if place + 1 < len(rows) and chance * confidence.goes_on(place, p) > drafts[place + 1]:
                return Fate.MORE
            return Fate.LAST

        return worth

    def saw(self, seen: Seen) -> None:
        """See Length."""
        self._rounds += 1
        self._alone = 0 if self._asked else self._alone + 1
        if self._planned:
            self._count(seen)
        elif self._resting:
            self._resting -= 1
            if self._resting >= PRICED and self._resting % RARE:
                return  # some of a long rest and its last ones tell what plain decoding costs
        self._new.append((seen, self._asked, self._sampled, self._asked > 0 or self._alone >= ALONE))
        if (
            self._rounds < REVIEW
            or self._rounds % LOOK == 0
            or len(self._new) >= min(RAREST_REVIEW, REVIEW + self._rounds // REVIEW)
        ):
            self._review()

    def _review(self) -> None:
        """Learn from the rounds since the last time; a round lasts milliseconds, so not after each."""
        first = 0 if self._warm else 1  # the first round pays for what is touched for the first time
        for seen, proposals, _, tells in self._new[max(first, len(self._new) - PRICED) :]:
            if tells:
                self._prices.saw(proposals, len(seen.p), seen.drafting, seen.seconds)
        for seen, _, sampled, _ in self._new:
            self._warm = True
            self._confidence[sampled].saw(seen.p[: seen.judged], seen.accepted)
        self._new.clear()
        prices, pace = self._prices, max(self.gain, 1.0)
        prices.review()
        self._row_needs = [pace * cost for cost in prices.more_rows]
        both = zip(prices.more_rows, prices.more_drafts, strict=True)
        self._draft_needs = [pace * (row + draft) for row, draft in both]
        if self._drafting >= 1.0:
            drafted = self._drafted / self._drafting
            self._why = f"as far as the draft is sure, {drafted:.1f} on average; {self.gain:.2f} x plain"

    def _count(self, seen: Seen) -> None:
        """A round with a draft: what it brought, and whether the draft goes on."""
        verified, accepted = len(seen.p), seen.accepted
        spent = self._prices.rows[verified] + self._prices.drafts[self._asked]
        self._tokens = SLOW * self._tokens + accepted + 1
        self._spent = SLOW * self._spent + spent
        self._drafted = SLOW * self._drafted + verified
        self._drafting = SLOW * self._drafting + 1.0
        self._late_tokens = FAST * self._late_tokens + accepted + 1
        self._late_spent = FAST * self._late_spent + spent
        if self._late_tokens < self._late_spent:
            self._resting, self._rest = self._rest, min(2 * self._rest, LONGEST_REST)
            self._late_spent = WOKEN
            self._late_tokens = HOPE * WOKEN
        elif accepted:
            self._rest = REST
