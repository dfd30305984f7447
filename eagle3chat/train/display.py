"""A run's progress on a terminal: one line that is rewritten; elsewhere a line now and then. Knows no tensors."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TextIO

from eagle3chat.train.journal import Measurement, Update

STEADY_SECONDS = 0.2
PLAIN_SECONDS = 60.0  # between two lines where nothing can be rewritten
RECENT = 20  # updates that the shown figures are of


class Display:
    """Shows stages, updates and measurements.

    Args:
        stream: Usually stderr.
        clock: Seconds, for the tests.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._live = stream.isatty()
        self._shown = -1e9
        self._stage = ""
        self._recent: deque[Update] = deque(maxlen=RECENT)
        self._first: tuple[float, float] | None = None  # when and at which share this process began
        self._measured = ""

    def line(self, text: str) -> None:
        """A line that stays."""
        self._stream.write(f"\r\x1b[K{text}\n" if self._live else f"{text}\n")
        self._stream.flush()

    def stage(self, stage: str, share: float, left: float | None = None) -> None:
        """A part of the work that runs: `share` of it is done, `left` seconds are to come."""
        more = "" if left is None else f", {span(left)} left"
        self._show(f"{stage} {share:4.0%}{more}", force=stage != self._stage or share >= 1.0)
        self._stage = stage

    def update(self, update: Update) -> None:
        """An update was made."""
        now = self._clock()
        self._recent.append(update)
        if self._first is None:
            self._first = (now, update.share)
        seconds = sum(u.seconds for u in self._recent)
        speed = sum(u.tokens for u in self._recent) / seconds if seconds else 0.0
        loss = sum(u.losses[0] for u in self._recent) / len(self._recent)
        began, share = self._first
        gone = update.share - share
        left = f", {span((now - began) * (1.0 - update.share) / gone)} left" if gone > 0 else ""
        text = f"training {update.share:4.0%}, update {update.number}, loss {loss:.3f}, {speed:.0f} tok/s{left}"
        self._show(text + self._measured)

    def measurement(self, measurement: Measurement) -> None:
        """The draft was measured on what is held out."""
        places = " ".join(f"{p:.2f}" for p in measurement.rounds.acceptance)
        self._measured = f"; held out: tau {measurement.rounds.tau:.3f}, accepted {places}"
        if not self._live:
            self.line(f"update {measurement.number}{self._measured}")

    def done(self) -> None:
        """Leave the line empty for what comes next."""
        if self._live:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def _show(self, text: str, *, force: bool = False) -> None:
        now = self._clock()
        if not force and now - self._shown < (STEADY_SECONDS if self._live else PLAIN_SECONDS):
            return
        self._shown = now
        self._stream.write(f"\r\x1b[K{text}" if self._live else f"{text}\n")
        self._stream.flush()


def span(seconds: float) -> str:
    """A time to come: 40 s, 12 min, 1 h 05."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d}"
