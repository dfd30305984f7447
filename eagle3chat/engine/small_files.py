"""Reading a small file that a stranger may have made: never a pipe or a device, never more than a limit."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_small(path: Path, limit: int) -> bytes:
    """The bytes of a regular file.

    Raises:
        OSError: It cannot be read, is no regular file, or is larger than `limit` bytes.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # opening a pipe must not wait for a writer
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        if status.st_size > limit:
            raise OSError(errno.EFBIG, f"it is larger than {limit >> 20} MiB")
        return file.read(limit)
