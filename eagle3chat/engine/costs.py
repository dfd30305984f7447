"""What a round costs, by its length, from the rounds that ran. Knows no tokens and no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

SAMPLES = 21  # of a length: their median counts
LATELY = 9  # rounds that tell how fast the machine is just now
PATIENCE = 24  # rounds of others, for each sample of a length above 0, after which it counts as not known
DOUBT = 20  # rounds that the mean cost of a token counts for, against what was measured at one length
FEW = 4  # rounds that the guess of the mean counts for
LEAST = 0.03  # of a round without a draft, that a token costs: less is noise
SHORTEST = 1e-9  # seconds: a clock may be coarse
GROWTH = 0.1  # of a round's cost with a token of its chain, before it was measured


class Costs:
    """Medians of the last rounds of each length, of two middle ones the lower: slow rounds are the odd ones.

    Costs are compared that were measured at different times, on a machine whose speed changes by more than what they
    differ by. So each is kept in units of what rounds cost at its time: the median of seconds / cost of the length,
    over the rounds before it. Only ratios of costs mean anything.

    Args:
        base: A length that always counts as known, once it was seen. Below 0: of another kind than
            the others, see `_slope`.
    """

    def __init__(self, base: int = 0) -> None:
        self._base = base
        self._samples: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}
        self._lately: deque[float] = deque(maxlen=LATELY)
        self._unit = 0.0  # seconds, just now
        self._rounds = 0
        self._last: dict[int, int] = {}  # round in which a length was seen

    def saw(self, length: int, seconds: float) -> None:
        """A round of that length ran."""
        seconds = max(seconds, SHORTEST)
        if not self._lately:
            self._unit = seconds
        samples = self._samples.setdefault(length, deque(maxlen=SAMPLES))
        samples.append(seconds / self._unit)
        self._medians[length] = sorted(samples)[(len(samples) - 1) // 2]
        self._lately.append(seconds / self._medians[length])
        self._unit = sorted(self._lately)[(len(self._lately) - 1) // 2]
        self._rounds += 1
        self._last[length] = self._rounds

    def forget(self) -> None:
        """Lengths that nobody chose for long: a few slow rounds may be the reason, and would stay one for good."""
        for length, samples in tuple(self._samples.items()):
            if length != self._base and self._rounds - self._last[length] > PATIENCE * len(samples):
                del self._samples[length], self._medians[length], self._last[length]

    @property
    def known(self) -> bool:
        """Whether any round ran."""
        return bool(self._medians)

    def now(self, length: int) -> float:
        """Seconds of such a round, just now."""
        return self.of(length) * self._unit

    def more(self, longest: int) -> list[float]:
        """What one more token costs on top of each length below `longest`: what was measured there, drawn towards the
        mean of all lengths. The guess, before there are lengths to compare, is a share of a round without a draft."""
        unit, costs = self.of(0), [self.of(length) for length in range(longest + 1)]
        slope = self._slope(unit)
        found = []
        for length in range(longest):
            rounds = min(len(self._samples.get(length, ())), len(self._samples.get(length + 1, ())))
            measured = costs[length + 1] - costs[length]
            found.append(max((rounds * measured + DOUBT * slope) / (rounds + DOUBT), LEAST * unit))
        return found

    def start(self, more: Sequence[float], guess: float) -> float:
        """The cost of length 0 by all lengths: as measured, less `more` up to there; each weighs as much as it has
        rounds."""
        total, rounds = FEW * guess, float(FEW)
        for length, samples in self._samples.items():
            if 0 <= length <= len(more):
                total += len(samples) * (self._medians[length] - sum(more[:length]))
                rounds += len(samples)
        return total / rounds

    def _slope(self, unit: float) -> float:
        """Of a line through all lengths, by least squares, each weighing as much as it has rounds. One below 0 stands
        for 0 as long as that has few of its own."""
        known = [(length, float(len(self._samples[length])), cost) for length, cost in self._medians.items()]
        for at, (length, count, cost) in enumerate(known):
            if length < 0:
                known[at] = (0, count * FEW / (FEW + len(self._samples.get(0, ()))), cost)
        rounds = sum(count for _, count, _ in known)
        middle = sum(length * count for length, count, _ in known) / max(rounds, 1)
        spread = sum(count * (length - middle) ** 2 for length, count, _ in known)
        rise = sum(count * (length - middle) * cost for length, count, cost in known)
        return (rise + FEW * GROWTH * unit) / (spread + FEW)

    def of(self, length: int) -> float:
        """The cost of a round: the median of its last ones, or a line through the nearest lengths that are known."""
        if (own := self._medians.get(length)) is not None:
            return own
        near = sorted(self._medians, key=lambda known: (abs(known - length), known))
        if not near:
            return 1.0 + GROWTH * length
        at = self._medians[near[0]]
        if len(near) == 1:
            return at * (1.0 + GROWTH * length) / (1.0 + GROWTH * near[0])
        slope = (self._medians[near[1]] - at) / (near[1] - near[0])
        return max(at * 0.5, at + max(slope, 0.0) * (length - near[0]))
