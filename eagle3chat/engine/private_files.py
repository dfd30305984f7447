"""Directories and files for their owner alone. Knows no one's contents."""

from __future__ import annotations

import os
from pathlib import Path


def private_directory(path: Path) -> None:
    """Make a directory and those above it that are missing, each for its owner alone (`Path.mkdir` gives the ones
    above the default mode). One that is there keeps its mode.

    Raises:
        OSError: It cannot be made, or a file is in its place.
    """
    missing = []
    level = path
    while not level.exists() and level != level.parent:
        missing.append(level)
        level = level.parent
    for level in reversed(missing):
        level.mkdir(mode=0o700, exist_ok=True)
    path.mkdir(exist_ok=True)  # says so where it is a file


def open_private(path: Path, flags: int = os.O_WRONLY | os.O_CREAT | os.O_TRUNC) -> int:
    """A descriptor of a file that, where it is made, only its owner can read.

    Raises:
        OSError: It cannot be opened.
    """
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
