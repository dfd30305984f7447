"""Reading a file that a stranger may have made, never more than a limit: no pipe or device where it is not named."""

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


def read_named(path: Path, limit: int) -> str:
    """The UTF-8 text of a file that a person named, which may be a pipe.

    Raises:
        OSError: It cannot be read, or holds more than `limit` characters.
        UnicodeDecodeError: It is something else.
    """
    with path.open(encoding="utf-8") as file:
        text = file.read(limit + 1)
    if len(text) > limit:
        raise OSError(errno.EFBIG, f"it holds more than {limit:,} characters")
    return text
