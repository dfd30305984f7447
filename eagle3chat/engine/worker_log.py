"""The decode worker's log file: for its owner alone, and bounded, also while a worker writes.

A worker has a descriptor of its own, opened to append, so the file is cut under it rather than renamed: several
programs may share one. Knows no process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from eagle3chat.engine.private_files import open_private, private_directory

LOG_BYTES = 1 << 20  # of a file that is larger the end is set aside (one is kept), and it begins anew
LOOK_SECONDS = 1.0  # between two looks at its size


class WorkerLog:
    """One log file. Where it cannot be written nothing is: a chat needs no log.

    Args:
        path: The file; its directory is made. The one that is set aside has ".1" behind its name.
        clock: Seconds that never go back.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._clock = clock
        self._looked = clock()

    def open(self) -> int:
        """A descriptor for a worker that starts; of the null device when the file cannot be written."""
        try:
            private_directory(self.path.parent)
            self._bound()
            log = open_private(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK)  # a pipe: refused
            with suppress(OSError):  # another's
                os.fchmod(log, 0o600)
            os.write(log, f"--- {datetime.now(UTC).isoformat(timespec='seconds')} a worker starts\n".encode())
            return log
        except OSError:
            return os.open(os.devnull, os.O_WRONLY)

    def tend(self) -> None:
        """Keep the file bounded; cheap enough for every event."""
        now = self._clock()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self._bound()

    def _bound(self) -> None:
        with suppress(OSError):
            if os.stat(self.path).st_size > LOG_BYTES:
                self._set_aside()

    def _set_aside(self) -> None:
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            end = os.pread(fd, LOG_BYTES, os.fstat(fd).st_size - LOG_BYTES)
            with suppress(OSError), os.fdopen(open_private(self.path.with_name(self.path.name + ".1")), "wb") as old:
                old.write(end)  # what comes between this and the cut is lost
            os.ftruncate(fd, 0)
        finally:
            os.close(fd)
