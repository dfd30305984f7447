"""The line to the decode worker: events from its thread wait here until the screen fetches them.

Rounds arrive faster than a screen needs them, so they only wait; everything else also wakes the screen. Starting,
restarting and closing take time and run beside the event loop. Knows no widget.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from eagle3chat.engine.errors import Eagle3Error
from eagle3chat.engine.events import Event, Failed, Prefill, Round
from eagle3chat.engine.requests import Controls, PairOptions, Say


class Worker(Protocol):
    """What the screen needs of a decode worker's handle."""

    def start(self) -> None: ...
    def say(self, say: Say) -> None: ...
    def adjust(self, controls: Controls) -> None: ...
    def cancel(self) -> None: ...
    def restart(self) -> None: ...
    def close(self, timeout: float = 3.0) -> None: ...


WorkerFactory = Callable[[PairOptions, Callable[[Event], None]], Worker]


class Link:
    """A worker and its waiting events.

    Args:
        factory: Makes the worker.
        options: The pair to open.
        wake: Called on any thread when the screen should fetch events soon.
    """

    def __init__(self, factory: WorkerFactory, options: PairOptions, wake: Callable[[], None]) -> None:
        self._waiting: deque[Event] = deque()
        self._wake = wake
        self._factory = factory
        self._number = 0  # of the worker that is listened to
        self.options = options
        self._worker = factory(options, partial(self._hear, 0))

    def put(self, event: Event) -> None:
        """Take an event, on any thread."""
        self._waiting.append(event)
        if not isinstance(event, Round | Prefill):
            self._wake()

    def _hear(self, number: int, event: Event) -> None:
        if number == self._number:
            self.put(event)

    def fetch(self) -> list[Event]:
        """The events that wait, in order."""
        events: list[Event] = []
        while self._waiting:
            events.append(self._waiting.popleft())
        return events

    async def start(self) -> None:
        """Start the worker; a failure becomes an event."""
        await self._beside(self._worker.start)

    async def restart(self) -> None:
        """End the worker and start another; a failure becomes an event."""
        await self._beside(self._worker.restart)

    async def switch(self, options: PairOptions) -> None:
        """End the worker and start one with another pair; a failure becomes an event."""
        before = self._worker
        self._number += 1
        self.options = options
        self._worker = self._factory(options, partial(self._hear, self._number))
        await self._beside(before.close)
        await self._beside(self._worker.start)

    async def _beside(self, work: Callable[[], None]) -> None:
        try:
            await asyncio.to_thread(work)
        except Eagle3Error as error:
            self.put(Failed(error.message, error.fix, fatal=True))

    def say(self, say: Say) -> None:
        """Ask for a reply; a dead worker becomes an event."""
        try:
            self._worker.say(say)
        except Eagle3Error as error:
            self.put(Failed(error.message, error.fix, fatal=True))

    def adjust(self, controls: Controls) -> None:
        """New controls from the next round on."""
        self._worker.adjust(controls)

    def cancel(self) -> None:
        """End the reply at the next round."""
        self._worker.cancel()

    def close(self) -> None:
        """End the worker, within its own limit of time."""
        self._worker.close()
