"""Reading a transcript.

Whatever a crash, a power cut or a hand left in a file, what can be read is read and the rest counted.
Nothing here writes or locks.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from eagle3chat.engine.errors import TranscriptError
from eagle3chat.engine.events import Finished, Round
from eagle3chat.engine.requests import Controls
from eagle3chat.transcript_codec import (
    FORMAT,
    Change,
    Conversation,
    Damaged,
    Header,
    Note,
    PairName,
    Record,
    Reply,
    Said,
    Setup,
    Turn,
    decode,
    reply_ids,
    reply_text,
    revive,
    unpack_rounds,
)


def load(path: Path) -> Conversation:
    """Read a transcript.

    Raises:
        TranscriptError: It cannot be read, is no transcript, or was written by a newer version.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise TranscriptError(f"The transcript {path} cannot be read: {error.strerror}.") from error
    reader = Reader(path)
    with _without_collection():
        for line in lines:
            if line:
                reader.take(line)
    return reader.conversation()


@contextmanager
def _without_collection() -> Iterator[None]:
    """A long conversation makes half a million values and no garbage; to look for some takes a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.freeze()
            gc.unfreeze()  # both: what was made counts as old, and is not looked through at once
            gc.enable()


class Reader:
    """Puts records together. A reply stands where its first round stands; notes may fall into it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: Header | None = None
        self.pair = PairName()
        self.controls = Controls()
        self.turns: list[Turn] = []
        self.rounds: list[Round] = []  # of the reply that is not complete
        self.reply_at = 0  # its place among the turns
        self.skipped = 0
        self.title = ""
        self.setup: Setup | None = None

    def take(self, line: bytes) -> None:
        try:
            self._record(decode(line))
        except Damaged:
            self.skipped += 1

    def _record(self, record: Record) -> None:
        match record["type"]:
            case "header":
                self._header(record)
            case "message":
                said = revive(Said, record)
                self._end_partial()
                self.turns.append(said)
            case "rounds":
                self._rounds(unpack_rounds(record))
            case "reply":
                self._reply(record)
            case "note":
                self.turns.append(revive(Note, record))
            case "change":
                change = revive(Change, record)
                self._end_partial()
                self.turns.append(change)
            case "continue":
                self._go_on(revive(_Place, record).value)
            case "settings":
                self.controls = revive(Controls, record["controls"])
            case "setup":
                self.setup = revive(Setup, record["setup"])
            case "title":
                self.title = revive(_Text, record).text
            case "pair":
                self.pair = revive(PairName, record["pair"])

    def _header(self, record: Record) -> None:
        if type(record["format"]) is not int:
            raise ValueError("no format number")
        if record["format"] > FORMAT:
            raise TranscriptError(
                f"The transcript {self.path} has format {record['format']}, and this eagle3chat reads up to {FORMAT}.",
                "Update eagle3chat to read it.",
            )
        header = revive(Header, record)
        self.header, self.pair, self.controls = header, header.pair, header.controls

    def _rounds(self, rounds: tuple[Round, ...]) -> None:
        for r in rounds:
            if self.rounds and r.index <= self.rounds[-1].index:  # a second reply to the same message
                self._end_partial()
            if not self.rounds:
                self.reply_at = len(self.turns)
            self.rounds.append(r)

    def _reply(self, record: Record) -> None:
        finished = revive(Finished, record["finished"])
        controls = revive(Controls, record["controls"])
        ids = revive(_Ids, record).token_ids
        said = revive(_Text, record)
        if not self.rounds:
            self.reply_at = len(self.turns)
        reply = Reply(said.text, ids, tuple(self.rounds), finished, controls, self.pair, said.at)
        self.turns.insert(self.reply_at, reply)
        self.rounds = []

    def _go_on(self, place: int) -> None:
        """Take a reply to the last message up again, with its rounds."""
        self._end_partial()
        asked = max((i for i, turn in enumerate(self.turns) if isinstance(turn, Said) and turn.role == "user"))
        replies = [
            i
            for i, turn in enumerate(self.turns)
            if i > asked and isinstance(turn, Reply) and (turn.text or turn.token_ids)
        ]
        if not 0 <= place < len(replies):
            raise ValueError("no such reply")
        reply = self.turns[replies[place]]
        if not isinstance(reply, Reply) or not reply.rounds:
            raise ValueError("nothing to go on with")
        self.reply_at, self.rounds = replies[place], list(reply.rounds)
        del self.turns[self.reply_at]

    def _end_partial(self) -> None:
        if self.rounds:
            rounds = tuple(self.rounds)
            reply = Reply(reply_text(rounds, None), reply_ids(rounds, None), rounds, None, self.controls, self.pair)
            self.turns.insert(self.reply_at, reply)
            self.rounds = []

    def conversation(self) -> Conversation:
        self._end_partial()
        if self.header is None and not self.turns:
            raise TranscriptError(f"{self.path} is not a transcript of eagle3chat.")
        header = self.header or Header(self.path.stem, "")
        turns = tuple(self.turns)
        return Conversation(header, turns, self.pair, self.controls, self.skipped, self.title, self.setup)


@dataclass(frozen=True, slots=True)
class _Ids:
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Place:
    value: int


@dataclass(frozen=True, slots=True)
class _Text:
    text: str
    at: str = ""
