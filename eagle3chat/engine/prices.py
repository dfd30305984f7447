"""What rounds cost in plain ones: the target's rows and the draft's proposals apart. Knows no tokens and no clock.

A round with a proposal that was dropped has the rows of a shorter chain: as one cost they could not be told apart.
And beside a draft even a pass of one row may take longer than among rounds of plain decoding, where the target's
weights stay in a large cache that the draft's push them out of.
"""

from __future__ import annotations

from itertools import accumulate

from eagle3chat.engine.costs import Costs

FIRST, NEXT = 0.1, 0.05  # of a plain round, that proposals cost, before it was measured
UNEASE = 0.02  # of a plain round, that its pass takes longer beside a draft, before it was measured
PLAIN = -1  # the length of a round without a draft, among passes with so many drafted tokens
LEAST = 0.01  # of a plain round, that one more proposal costs: less is noise


class Prices:
    """Costs in units of a round without a draft.

    Args:
        longest: Of chains.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._passes, self._drafts = Costs(PLAIN), Costs()
        self.rows: list[float] = []  # of a pass with so many drafted tokens, 0 .. longest, where a draft was asked
        self.drafts: list[float] = []  # of so many proposals, 0 .. longest
        self.more_rows: list[float] = []  # of one more row after so many, 0 .. longest - 1
        self.more_drafts: list[float] = []  # of one more proposal after so many, 0 .. longest - 1
        self.review()

    def saw(self, proposals: int, verified: int, drafting: float, seconds: float) -> None:
        """A round ran: `seconds` of which `drafting` went to proposals, dropped ones included. One without proposals
        must come after others of that kind."""
        self._passes.saw(verified if proposals else PLAIN, seconds - drafting)
        if proposals:
            self._drafts.saw(proposals, drafting)

    def review(self) -> None:
        """Take what was seen into the lists."""
        passes, drafts, lengths = self._passes, self._drafts, range(self._longest + 1)
        passes.forget()
        drafts.forget()
        unit, more = passes.of(PLAIN), passes.more(self._longest)
        self.more_rows = [cost / unit for cost in more]
        # Sums and not the medians: a chain whose rows look free is asked for, and no shorter one sets that right.
        start = max(1.0, passes.start(more, unit * (1.0 + UNEASE)) / unit)
        self.rows = list(accumulate(self.more_rows, initial=start))
        if drafts.known:
            plain = passes.now(PLAIN)
            self.drafts = [0.0, *(drafts.now(length) / plain for length in lengths[1:])]
        else:
            self.drafts = [0.0, *(FIRST + NEXT * length for length in lengths[:-1])]
        steps = zip(self.drafts[:-1], self.drafts[1:], strict=True)
        self.more_drafts = [max(LEAST, after - before) for before, after in steps]
