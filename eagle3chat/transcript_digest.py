"""A transcript for a list: its title and all words that were said in it, without its rounds.

Most of a file is rounds; their lines are passed over unless a reply was broken off, whose only text they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from os import fstat
from pathlib import Path

from eagle3chat.transcript_codec import Damaged, Header, PairName, Record, decode, revive
from eagle3chat.transcript_list import Summary, title_of

_DROPPED = dict.fromkeys((0, 2, 3), " ")
ROUNDS = b'{"type":"rounds"'


@dataclass(frozen=True, slots=True)
class Digest:
    """What a list and a search need."""

    summary: Summary
    text: str  # all that was said, a paragraph a turn; of changed messages too


def digest(path: Path) -> Digest | None:
    """The digest of a transcript; None: it is none, or gone."""
    try:
        with path.open("rb") as file:
            stat = fstat(file.fileno())
            lines = file.read().split(b"\n")
    except OSError:
        return None
    reader = _Reader()
    for line in lines:
        if line.startswith(ROUNDS):
            reader.rounds.append(line)
        elif line:
            try:
                reader.take(decode(line))
            except Damaged:
                continue
    reader.broken_off()
    if not reader.known:
        return None
    summary = Summary(
        id=path.stem,
        path=path,
        created=_storable(reader.created),
        modified=datetime.fromtimestamp(stat.st_mtime, UTC).isoformat(timespec="seconds"),
        model=_storable(reader.model),
        title=_storable(title_of(reader.title) or title_of(reader.first)),
        turns=reader.turns,
        size=stat.st_size,
    )
    return Digest(summary, _storable("\n".join(reader.said)))


def _storable(text: str) -> str:
    """Text that SQLite takes, without the controls that an excerpt marks its hits with."""
    return text.translate(_DROPPED).encode("utf-8", "replace").decode()


class _Reader:
    def __init__(self) -> None:
        self.known = False
        self.created = self.model = self.title = self.first = ""
        self.turns = 0
        self.said: list[str] = []
        self.rounds: list[bytes] = []  # lines of the reply that is not complete

    def take(self, record: Record) -> None:
        match record["type"]:
            case "header":
                header = revive(Header, record)
                self.created, self.model, self.known = header.created, header.pair.model, True
            case "pair":
                self.model = revive(PairName, record["pair"]).model
            case "title":
                self.title = str(record["text"])
            case "message":
                self.broken_off()
                self.known = True
                self.said.append(str(record["text"]))
                if record["role"] == "user":
                    self.turns += 1
                    self.first = self.first or str(record["text"])
            case "reply":
                self.rounds = []
                self.known = True
                self.said.append(str(record["text"]))

    def broken_off(self) -> None:
        """What came of a reply without an end."""
        texts: list[str] = []
        for line in self.rounds:
            try:
                texts += [str(text) for text in decode(line)["text"]]
            except Damaged:
                continue
        self.rounds = []
        if texts:
            self.said.append("".join(texts))
