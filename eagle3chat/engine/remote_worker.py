"""The handle of a server: the decode worker's interface, spoken to an OpenAI-compatible server.

Knows no screen; HTTP is its thread's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import httpx

from eagle3chat.engine.errors import WorkerError
from eagle3chat.engine.events import Event
from eagle3chat.engine.remote_line import RemoteLine
from eagle3chat.engine.remote_options import ServerOptions
from eagle3chat.engine.requests import Controls, Say


class RemoteWorker:
    """Talks to one server. May be used as a `DecodeWorker`, on the same threads.

    Args:
        options: The server.
        on_event: Called on the handle's thread with each event in order. A reply that breaks off ends with Failed
            that is not fatal: the next one connects again. Fatal is a server that cannot be used at all.
        transport: Tests answer by it.
    """

    def __init__(
        self,
        options: ServerOptions,
        on_event: Callable[[Event], None],
        *,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._options = options
        self._on_event = on_event
        self._transport = transport
        self._line: RemoteLine | None = None
        self._closed = False
        self._lock = threading.Lock()

    @property
    def alive(self) -> bool:
        """Whether commands are taken."""
        line = self._line
        return line is not None and line.alive

    def start(self) -> None:
        """Ask the server what it is; Loading events follow, then Ready or Failed. Does nothing while alive.

        Raises:
            SettingError: The address is none.
            WorkerError: The handle was closed.
        """
        with self._lock:
            self._start()

    def say(self, say: Say) -> None:
        """Ask for a reply. Before Ready, and while a reply runs, it waits for its turn.

        Raises:
            WorkerError: There is no connection.
        """
        line = self._line
        if line is None or not line.alive:
            raise WorkerError("There is no server.", "Restart; the chat is kept.")
        line.call(line.put, say)

    def adjust(self, controls: Controls) -> None:
        """Nothing: a server takes no new controls within a reply. The next Say carries them."""

    def cancel(self) -> None:
        """End the running reply at once. Without one nothing happens."""
        if self._line is not None:
            self._line.call(self._line.stop)

    def restart(self) -> None:
        """Leave the server and ask it anew. No event of before follows.

        Raises:
            WorkerError: The handle was closed.
        """
        with self._lock:
            if self._line is not None:
                self._line.retire(2.0)
            self._start()

    def close(self, timeout: float = 3.0) -> None:
        """Close the connection, within `timeout` seconds. No event follows."""
        self._closed = True
        with self._lock:
            if self._line is not None:
                self._line.retire(timeout)

    def _start(self) -> None:
        if self._closed:
            raise WorkerError("The connection was closed.")
        if not self.alive:
            _ = self._options.origin  # refused here rather than on the thread
            self._line = RemoteLine(self._options, self._on_event, self._transport)
