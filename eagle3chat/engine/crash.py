"""A report of a mistake of ours, written where the person can read it before anyone else does.

It holds versions, the command's name and flags without their values, and where in the code it happened. It holds no
message text: exceptions quote what they choke on, so of each only the type is kept, and of paths only what is below
the installed packages. Knows no command.
"""

from __future__ import annotations

import os
import platform
import sys
import traceback
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from eagle3chat import __version__
from eagle3chat.engine.private_files import open_private, private_directory

KEPT = 10  # reports; older ones go


def reports_directory() -> Path:
    """Where reports are written."""
    from platformdirs import user_log_path

    return user_log_path("eagle3chat") / "crashes"


def write_report(error: BaseException, argv: Sequence[str], directory: Path | None = None) -> Path | None:
    """Write a report; its path, or None where it cannot be written."""
    directory = directory or reports_directory()
    now = datetime.now(UTC)
    path = directory / f"crash-{now.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    try:
        private_directory(directory)
        with os.fdopen(open_private(path), "w", encoding="utf-8", errors="replace") as file:
            file.write(report(error, argv, now))
        for old in sorted(directory.glob("crash-*.txt"))[:-KEPT]:
            old.unlink(missing_ok=True)
    except OSError:
        return None
    return path


def report(error: BaseException, argv: Sequence[str], now: datetime) -> str:
    """The words of a report."""
    lines = [
        "eagle3chat crash report. Nothing was sent anywhere: read it, then share it if you like.",
        "It holds no prompt, no reply and no name of your files.",
        "",
        f"time      {now.isoformat(timespec='seconds')}",
        f"version   {__version__}",
        f"python    {platform.python_version()} on {platform.system()} {platform.machine()}",
        f"command   {' '.join(_names(argv)) or '(chat)'}",
        "",
        *_chain(error),
    ]
    return "\n".join(lines) + "\n"


def _names(argv: Sequence[str]) -> Iterator[str]:
    """The command and the names of flags, no values."""
    for place, word in enumerate(argv):
        if word.startswith("--"):
            yield word.partition("=")[0]
        elif place == 0 and word.isalpha():
            yield word


def _chain(error: BaseException) -> Iterator[str]:
    """Each error, and where it was raised, the first one first."""
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None:
        yield from _chain(before)
        yield ""
    kind = type(error)
    yield f"{kind.__module__}.{kind.__qualname__}" if kind.__module__ != "builtins" else kind.__qualname__
    for frame in traceback.extract_tb(error.__traceback__):
        yield f"  {_place(frame.filename)}:{frame.lineno} in {frame.name}"


def _place(file: str) -> str:
    """A file's path below where Python finds its modules."""
    path = Path(file)
    for root in sorted((Path(entry) for entry in sys.path if entry), key=lambda p: -len(str(p))):
        if path.is_relative_to(root):
            return str(path.relative_to(root))
    return path.name
