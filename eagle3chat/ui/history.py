"""What was written in the prompt, kept from run to run in a file of the person's own. Knows no widget.

One JSON object a line: the draft, and the texts of its pastes. Several chats may write to it at once, each adds
lines at its end; it is cut to its last entries when it is read.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from eagle3chat.engine.private_files import private_directory
from eagle3chat.engine.safe_json import parse_json

KEPT = 500  # entries
KEPT_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """A draft that was sent or cleared."""

    text: str
    pastes: dict[str, str] = field(default_factory=dict)  # texts by placeholder


def default_history_path() -> Path:
    """history.jsonl in the user's state directory."""
    from platformdirs import user_state_path

    return user_state_path("eagle3chat") / "history.jsonl"


class History:
    """Entries, the newest last.

    Args:
        path: Where they are kept; None: in this run alone. A file that cannot be used costs the keeping, not the chat.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.entries: list[Entry] = []
        if path is not None:
            self._read(path)

    def add(self, entry: Entry) -> None:
        """A new entry, unless it says what the newest says or nothing."""
        if not entry.text.strip() or (self.entries and self.entries[-1] == entry):
            return
        self.entries.append(entry)
        if self._path is not None:
            with suppress(OSError):
                private_directory(self._path.parent)
                fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    os.write(fd, _line(entry))
                finally:
                    os.close(fd)

    def _read(self, path: Path) -> None:
        try:
            if not path.is_file():  # nothing there, or a pipe
                return
            data = path.read_bytes()
        except OSError:
            return
        lines = data[-KEPT_BYTES:].split(b"\n")
        self.entries = [entry for line in lines if (entry := _entry(line)) is not None][-KEPT:]
        if len(lines) > 2 * KEPT or len(data) > KEPT_BYTES:
            self._rewrite(path)

    def _rewrite(self, path: Path) -> None:
        new = path.with_name(f"{path.name}.{os.getpid()}")
        with suppress(OSError):
            fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.writelines(_line(entry) for entry in self.entries)
            new.replace(path)


def _line(entry: Entry) -> bytes:
    record = {"text": entry.text} | ({"pastes": entry.pastes} if entry.pastes else {})
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def _entry(line: bytes) -> Entry | None:
    """The entry on a line; None where it is damaged."""
    try:
        record = parse_json(line)
    except ValueError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("text"), str):
        return None
    pastes = record.get("pastes")
    known = pastes.items() if isinstance(pastes, dict) else ()
    return Entry(record["text"], {k: v for k, v in known if isinstance(k, str) and isinstance(v, str)})
