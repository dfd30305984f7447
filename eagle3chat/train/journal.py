"""What a run writes down as it goes, one JSON object a line, so that a run that was cut off can be read and drawn.

A line is an update or a measurement. Knows no tensors.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3chat.train.rounds import Rounds


@dataclass(frozen=True, slots=True)
class Update:
    """What one update came to."""

    number: int  # updates done
    epoch: int
    share: float  # of the run, when it began
    rate: float
    losses: tuple[float, ...]  # mean of each step
    length: float  # of the gradient before clipping
    tokens: int  # reply tokens
    seconds: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """The draft at one time on replies that it does not learn from."""

    number: int  # updates done
    share: float
    rounds: Rounds


Entry = Update | Measurement


class Journal:
    """A file of entries.

    Args:
        path: Appended to.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, entry: Entry) -> None:
        """Write an entry; it is in the file when this returns."""
        values = {"what": type(entry).__name__.lower(), **dataclasses.asdict(entry)}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")

    def read(self) -> list[Entry]:
        """All entries in order. Of updates done twice (after a crash) the later ones count; half a line does not."""
        entries: list[Entry] = []
        for line in self.path.read_text(encoding="utf-8").splitlines() if self.path.is_file() else ():
            try:
                entry = _entry(json.loads(line))
            except (ValueError, TypeError, KeyError):
                continue
            if isinstance(entry, Update):
                entries = [e for e in entries if e.number < entry.number] if _is_repeated(entries, entry) else entries
            entries.append(entry)
        return entries


def _is_repeated(entries: Iterable[Entry], entry: Entry) -> bool:
    last = max((e.number for e in entries), default=-1)
    return entry.number <= last


def _entry(values: dict[str, Any]) -> Entry:
    what = values.pop("what")
    if what == "update":
        return Update(**{**values, "losses": tuple(values["losses"])})
    rounds = values.pop("rounds")
    counts: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in rounds.items()
    }
    return Measurement(**values, rounds=Rounds(**counts))
