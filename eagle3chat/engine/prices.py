"""What rounds cost in plain ones: the target's rows and the draft's proposals apart. Knows no tokens and no clock.

A round with a proposal that was dropped has the rows of a shorter chain: as one cost they could not be told apart.
"""

from __future__ import annotations

from itertools import accumulate

from eagle3chat.engine.costs import Costs

FIRST, NEXT = 0.1, 0.05  # of a plain round, that proposals cost, before it was measured
LEAST = 0.01  # of a plain round, that one more proposal costs: less is noise


class Prices:
    """Costs in units of a round without a draft.

    Args:
        longest: Of chains.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._passes, self._drafts = Costs(), Costs()
        self.rows: list[float] = []  # of a pass with so many drafted tokens, 0 .. longest
        self.drafts: list[float] = []  # of so many proposals, 0 .. longest
        self.more_rows: list[float] = []  # of one more row after so many, 0 .. longest - 1
        self.more_drafts: list[float] = []  # of one more proposal after so many, 0 .. longest - 1
        self.review()

    def saw(self, proposals: int, verified: int, drafting: float, seconds: float) -> None:
        """A round ran: `seconds` of which `drafting` went to proposals, dropped ones included."""
        self._passes.saw(verified, seconds - drafting)
        if proposals:
            self._drafts.saw(proposals, drafting)

    def review(self) -> None:
        """Take what was seen into the lists."""
        passes, drafts, lengths = self._passes, self._drafts, range(self._longest + 1)
        passes.forget()
        drafts.forget()
        unit = passes.of(0)
        self.more_rows = [cost / unit for cost in passes.more(self._longest)]
        # Sums and not the medians: a chain whose rows look free is asked for, and no shorter one sets that right.
        self.rows = list(accumulate(self.more_rows, initial=1.0))
        if drafts.known:
            plain = passes.now(0)
            self.drafts = [0.0, *(drafts.now(length) / plain for length in lengths[1:])]
        else:
            self.drafts = [0.0, *(FIRST + NEXT * length for length in lengths[:-1])]
        steps = zip(self.drafts[:-1], self.drafts[1:], strict=True)
        self.more_drafts = [max(LEAST, after - before) for before, after in steps]
