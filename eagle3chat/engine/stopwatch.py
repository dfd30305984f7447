"""Where time goes: seconds by name of what runs in the wrapped calls, each second counted once. Knows no model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Call = Callable[..., Any]


class Stopwatch:
    """Adds up the time of wrapped calls. One that runs within another is taken off the outer one's time.

    What the wrapping itself costs, a fraction of a microsecond a call, is in the outer one's time.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._within = 0.0  # seconds of calls that have run inside the one at hand

    def add(self, name: str, seconds: float) -> None:
        """Time that was measured elsewhere."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def timed(self, name: str, call: Call) -> Call:
        """The call, with its own time counted under a name."""
        clock, seconds = time.perf_counter, self.seconds
        seconds.setdefault(name, 0.0)

        def run(*args: Any, **options: Any) -> Any:
            before, self._within = self._within, 0.0
            started = clock()
            try:
                return call(*args, **options)
            finally:
                elapsed = clock() - started
                seconds[name] += elapsed - self._within
                self._within = before + elapsed

        return run

    def leaf(self, name: str, call: Call) -> Call:
        """As `timed`, cheaper, of a call in which no other wrapped one runs and which does not raise."""
        clock, seconds = time.perf_counter, self.seconds
        seconds.setdefault(name, 0.0)

        def run(*args: Any) -> Any:
            started = clock()
            result = call(*args)
            elapsed = clock() - started
            seconds[name] += elapsed
            self._within += elapsed
            return result

        return run

    @contextmanager
    def ignored(self) -> Iterator[None]:
        """What runs inside the block is not counted."""
        before, within = dict(self.seconds), self._within
        try:
            yield
        finally:
            self.seconds.update({name: before.get(name, 0.0) for name in self.seconds})
            self._within = within
