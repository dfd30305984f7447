"""How long a decode worker may be silent while it owes something. Knows no process and no clock.

Time is what its owner waited in vain for an event, so neither a screen that reads slowly nor a machine that slept
counts against the worker.
"""

from __future__ import annotations

import os
import threading

from eagle3chat.engine.events import Event, Failed, Finished, Ready
from eagle3chat.engine.requests import Cancel, Command, Say

SWITCH = "EAGLE3CHAT_PATIENCE"  # seconds in place of both below; 0 waits for ever
SILENT_SECONDS = 600.0  # in one step: a chunk of a long prompt on a slow CPU takes minutes
STOP_SECONDS = 60.0  # after a stop was asked for, which ends at the next step


class Watchdog:
    """Counts what a worker owes: that it is ready, and an end for each reply that was asked for.

    Args:
        silent: Seconds of silence while something is owed.
        stop: The same once a stop was asked for.
    """

    def __init__(self, silent: float = SILENT_SECONDS, stop: float = STOP_SECONDS) -> None:
        self._limits = (silent, stop)
        self._lock = threading.Lock()  # commands come on one thread, events on another
        self._owed = 1  # Ready
        self._stopping = False
        self._silent = 0.0

    @classmethod
    def of_environment(cls) -> Watchdog:
        """With the limits of the environment; a value there that is no number is as good as none."""
        try:
            seconds = float(os.environ[SWITCH])
        except (KeyError, ValueError):
            return cls()
        if not seconds >= 0:  # nan as well
            return cls()
        return cls(seconds or float("inf"), seconds or float("inf"))

    @property
    def limit(self) -> float:
        """Seconds of silence that are in force."""
        return self._limits[self._stopping]

    def asked(self, command: Command) -> None:
        """A command goes to the worker."""
        with self._lock:
            if isinstance(command, Say):
                self._silent = 0.0 if not self._owed else self._silent
                self._owed += 1
            elif isinstance(command, Cancel) and self._owed and not self._stopping:
                self._stopping, self._silent = True, 0.0

    def heard(self, event: Event) -> None:
        """An event came."""
        with self._lock:
            self._silent = 0.0
            if isinstance(event, Ready | Finished | Failed):
                self._owed = max(self._owed - 1, 0)
                self._stopping = False

    def waited(self, seconds: float) -> bool:
        """No event came for so many more seconds; whether that is too long."""
        with self._lock:
            self._silent = self._silent + seconds if self._owed else 0.0
            return self._silent >= self.limit
