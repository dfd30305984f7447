"""Slow motion: events wait until a person has seen the round before. The engine's clock knows nothing of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from eagle3chat.engine.events import Event, Round


class Pace:
    """Holds events back, in order. With a rate of 0 nothing waits."""

    def __init__(self) -> None:
        self.rate = 0.0  # rounds a second
        self._waiting: deque[Event] = deque()
        self._next_at = 0.0
        self._hurry = False

    def put(self, events: Iterable[Event]) -> None:
        """Take events as they come from the worker."""
        self._waiting.extend(events)

    def due(self, now: float) -> list[Event]:
        """The events whose time has come, at `now` seconds."""
        events: list[Event] = []
        while self._waiting and (not isinstance(self._waiting[0], Round) or self._may_show(now)):
            events.append(self._waiting.popleft())
        return events

    def begin(self) -> None:
        """A reply begins."""
        self._hurry = False

    def hurry(self) -> None:
        """Nothing of this reply waits any more."""
        self._hurry = True

    def drop(self) -> None:
        """Forget what waits."""
        self._waiting.clear()

    def _may_show(self, now: float) -> bool:
        if self._hurry or not self.rate:
            return True
        if now < self._next_at:
            return False
        step = 1.0 / self.rate
        self._next_at = self._next_at + step if now - self._next_at < step else now + step
        return True
