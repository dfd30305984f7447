"""The line to the decode worker: events from its thread wait here until the screen fetches them.

Rounds arrive faster than a screen needs them, so they only wait; everything else also wakes the screen. Starting,
restarting and closing take time and run beside the event loop. Knows no widget.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
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
        self._worker = factory(options, self.put)

    def put(self, event: Event) -> None:
        """Take an event, on any thread."""
        self._waiting.append(event)
        if not isinstance(event, Round | Prefill):
            self._wake()

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
