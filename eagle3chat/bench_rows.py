"""What a verification costs by its number of rows, and how fast it reads the weights: from the rounds of a bench.

    verify(M)    seconds of a target pass over M rows (the anchor and M - 1 drafted tokens) and of judging them
    weights/s    bytes of weights that a pass reads (Info.pass_bytes) / verify(M)

Medians over all rounds with that many rows, whichever chain they ran under. Pure functions. Knows no engine.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from eagle3chat.bench import Run
from eagle3chat.engine.events import Round

LEAST_ROUNDS = 5  # with so many rows, or they are not told


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle of some values and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Of one value or more."""
        known = sorted(values)
        if len(known) == 1:
            return cls(known[0], known[0], known[0])
        low, median, high = statistics.quantiles(known, n=4, method="inclusive")
        return cls(median, low, high)

    def times(self, factor: float) -> Spread:
        """In another unit."""
        return Spread(self.median * factor, self.low * factor, self.high * factor)


@dataclass(frozen=True, slots=True)
class RowCost:
    """Rounds whose target pass had so many rows."""

    rows: int  # M
    rounds: int
    round_ms: Spread
    round_ratio: float | None  # median / that of one row; None: there were no rounds of one row
    verify_ms: Spread | None  # None: the backend does not time it apart
    verify_ratio: float | None
    weight_bytes_per_second: float | None  # at the median; None: verify or the bytes are not known
    bandwidth_share: float | None  # of the machine's read bandwidth


def row_costs(runs: Sequence[Run], pass_bytes: int, bandwidth: float | None) -> tuple[RowCost, ...]:
    """One a number of rows, from the fewest.

    Args:
        pass_bytes: 0: not known.
        bandwidth: Bytes a second that the machine reads; None: not known.
    """
    groups: dict[int, list[Round]] = {}
    for run in runs:
        for round_ in run.rounds:
            groups.setdefault(len(round_.drafted) + 1, []).append(round_)
    kept = {rows: groups[rows] for rows in sorted(groups) if len(groups[rows]) >= LEAST_ROUNDS}
    spreads = {rows: (Spread.of(r.seconds for r in group), _verify(group)) for rows, group in kept.items()}
    first_round, first_verify = spreads.get(1, (None, None))
    costs = []
    for rows, (whole, verify) in spreads.items():
        # Without a time of its own a verification is at least as fast as its round, which has no draft with one row.
        told = verify or (whole if rows == 1 else None)
        rate = pass_bytes / told.median if told and told.median > 0 and pass_bytes else None
        costs.append(
            RowCost(
                rows=rows,
                rounds=len(kept[rows]),
                round_ms=whole.times(1e3),
                round_ratio=_ratio(whole, first_round),
                verify_ms=None if verify is None else verify.times(1e3),
                verify_ratio=_ratio(verify, first_verify),
                weight_bytes_per_second=rate,
                bandwidth_share=rate / bandwidth if rate and bandwidth else None,
            )
        )
    return tuple(costs)


def _verify(group: Sequence[Round]) -> Spread | None:
    seconds = [r.verify_seconds for r in group if r.verify_seconds is not None]
    return Spread.of(seconds) if len(seconds) == len(group) else None


def _ratio(one: Spread | None, first: Spread | None) -> float | None:
    return one.median / first.median if one and first and first.median > 0 else None
