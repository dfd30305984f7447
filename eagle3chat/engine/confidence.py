"""How often a drafted token is accepted, by the probability that the draft gave it. Knows no tokens and no costs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

EDGES = (0.02, 0.05, 0.1, 0.18, 0.28, 0.4, 0.55, 0.7, 0.85, 0.95)  # between the classes of probability
MIDDLES = (0.01, 0.035, 0.07, 0.14, 0.23, 0.34, 0.47, 0.62, 0.77, 0.9, 0.98)
PLACES = 3  # of the chain that are told apart; the last one stands for all behind it
DOUBT = 20.0  # judgements that the guess counts for
MEMORY = 0.99  # weight of what was known of a class when a new judgement comes
LUCK = 0.2  # acceptance of an improbable token when tokens are sampled, before anything was judged
GOES_ON = 0.3  # chance of the token after an accepted one, before anything was judged
GOES_ON_DOUBT = 8.0  # judgements that it counts for


class Confidence:
    """Shares of accepted tokens, by place and class of probability, and of those after which the next one is accepted.

    The guess is that the draft is right as often as it says so: measured on a trained draft, greedy, it is right
    by a few hundredths. When tokens are sampled, improbable ones are accepted more often than that.

    Args:
        sampled: The temperature is above 0.
    """

    def __init__(self, *, sampled: bool) -> None:
        luck = LUCK if sampled else 0.0
        self._judged = [[DOUBT] * len(MIDDLES) for _ in range(PLACES)]
        self._kept = [[DOUBT * (luck + (0.98 - luck) * p) for p in MIDDLES] for _ in range(PLACES)]
        self._reached = [[GOES_ON_DOUBT] * len(MIDDLES) for _ in range(PLACES)]
        self._gone_on = [[GOES_ON_DOUBT * GOES_ON] * len(MIDDLES) for _ in range(PLACES)]

    def share(self, place: int, p: float) -> float:
        """The estimated acceptance of a token at a place, from 0, that is judged."""
        row, column = _cell(place, p)
        return self._kept[row][column] / self._judged[row][column]

    def goes_on(self, place: int, p: float) -> float:
        """The estimated acceptance of the token after an accepted one, of which nothing is known yet."""
        row, column = _cell(place, p)
        return self._gone_on[row][column] / self._reached[row][column]

    def saw(self, p: Sequence[float], accepted: int) -> None:
        """The judged tokens of a chain had these probabilities; so many were accepted."""
        for place, share in enumerate(p):
            row, column = _cell(place, share)
            self._judged[row][column] = MEMORY * self._judged[row][column] + 1.0
            self._kept[row][column] = MEMORY * self._kept[row][column] + (place < accepted)
            if place + 1 < len(p):
                self._reached[row][column] = MEMORY * self._reached[row][column] + 1.0
                self._gone_on[row][column] = MEMORY * self._gone_on[row][column] + (place + 1 < accepted)


def _cell(place: int, p: float) -> tuple[int, int]:
    return min(place, PLACES - 1), bisect_right(EDGES, p)
