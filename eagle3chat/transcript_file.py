"""A transcript's file for one process alone, and that it is on the disk. Knows nothing of what is in it."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from eagle3chat.engine.errors import TranscriptError


def open_locked(path: Path, flags: int) -> int:
    """A transcript's file, for this process alone.

    Raises:
        TranscriptError: Another eagle3chat has it open.
        OSError: It cannot be opened.
    """
    fd = os.open(path, flags | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise TranscriptError(
            f"The transcript {path.stem} is open in another eagle3chat.",
            f"Close that one first, or copy it: eagle3chat transcripts fork {path.stem}",
        ) from None
    except OSError as error:  # some network file systems know no locks; a chat without one beats no transcript
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP):
            os.close(fd)
            raise
    return fd


def sync_directory(directory: Path) -> None:
    """That a file is new in it survives a power cut."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def reason(error: OSError) -> str:
    """Why it failed, in lower case."""
    return (error.strerror or str(error)).lower()
