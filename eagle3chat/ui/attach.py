"""Files that a message names with `@path`: their text goes with it. Knows no widget."""

from __future__ import annotations

import os
import re
from pathlib import Path

from eagle3chat.engine.errors import SettingError
from eagle3chat.ui.figures import size

BYTES = 1 << 20  # of a file
_NAMED = re.compile(r'(?<!\S)@(?:"([^"\n]+)"|(\S+))')
_SHOWN = 40  # entries that a completion offers


def attached(message: str) -> str:
    """The message, and behind it the text of each file that it names. What names no file stays as it is.

    Raises:
        SettingError: A file is too large, is no text, or cannot be read.
    """
    blocks: list[str] = []
    for match in _NAMED.finditer(message):
        name = match[1] or match[2]
        if (path := _file(name)) is not None:
            block = _block(name, path)
            if block not in blocks:
                blocks.append(block)
    return "\n\n".join([message, *blocks])


def _file(name: str) -> Path | None:
    for spelled in (name, name.rstrip(".,;:!?)")):  # the end of a sentence is not part of the path
        path = Path(os.path.expanduser(spelled))
        try:
            if spelled and path.is_file():
                return path
        except (OSError, ValueError):
            return None
    return None


def _block(name: str, path: Path) -> str:
    try:
        count = path.stat().st_size
        if count > BYTES:
            raise SettingError(f"The file {name} is too large ({size(count)}).", f"Name files up to {size(BYTES)}.")
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise SettingError(f"The file {name} is not text in UTF-8.", "Take its @ away to name it only.") from None
    except OSError as error:
        raise SettingError(f"The file {name} cannot be read: {error.strerror}.") from None
    if "\0" in text:
        raise SettingError(f"The file {name} is not text.", "Take its @ away to name it only.")
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{path}:\n{fence}\n{text.rstrip()}\n{fence}"


def paths(begun: str) -> list[str]:
    """Paths that begin so, directories with a slash behind them."""
    head, _, start = begun.rpartition("/")
    where = Path(os.path.expanduser(f"{head}/" if head or begun.startswith("/") else "."))
    try:
        with os.scandir(where) as entries:
            found = sorted(
                entry.name + ("/" if entry.is_dir() else "")
                for entry in entries
                if entry.name.startswith(start) and (start.startswith(".") or not entry.name.startswith("."))
            )
    except (OSError, ValueError):
        return []
    before = begun[: len(begun) - len(start)]
    return [before + name for name in found[:_SHOWN]]
