"""A conversation on disk: append-only JSONL, one file each, in the user's data directory.

    Transcript          writes one: the user's message before anything is generated, rounds about once a
                        second, the reply and an fsync at its end
    load                reads one, whatever a crash left of it
    list_transcripts, find

Files are readable by their owner alone and hold the original text, uncleaned: who shows it cleans it.
A file is there from the first user message on, so opening and leaving a chat leaves nothing behind. Knows the
values of the engine's events and requests, no worker and no screen. One thread uses a `Transcript`.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from eagle3chat import __version__
from eagle3chat.engine.errors import TranscriptError
from eagle3chat.engine.events import Finished, Info, Round
from eagle3chat.engine.private_files import private_directory
from eagle3chat.engine.requests import Controls
from eagle3chat.transcript_codec import (
    FORMAT,
    Conversation,
    Header,
    PairName,
    Record,
    Setup,
    encode,
    pack_rounds,
    plain,
    reply_ids,
    reply_text,
)
from eagle3chat.transcript_file import open_locked, reason, sync_directory
from eagle3chat.transcript_line import to_messages
from eagle3chat.transcript_list import Summary, default_directory, find, list_transcripts
from eagle3chat.transcript_read import load

__all__ = ["Summary", "Transcript", "default_directory", "find", "list_transcripts", "load", "to_messages"]

FLUSH_SECONDS = 1.0


class Transcript:
    """The writer of one conversation.

    Every method that writes raises TranscriptError the first time that writing fails (the disk is full,
    the directory is gone); `broken` then says why, and all later calls do nothing: a chat outlives its file.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """A new conversation at `path`; use `create` or `resume`."""
        self.path = path
        self.broken = ""
        self._clock = clock
        self._fd = -1
        self._closed = False
        self._created = _now()
        self._pair = PairName()
        self._controls = Controls()
        self._system = ""
        self._setup: Setup | None = None
        self._turn = 0
        self._reply: list[Round] = []  # rounds of the reply that streams
        self._written = 0  # of them
        self._flushed_at = clock()

    @classmethod
    def create(cls, directory: Path | None = None, *, clock: Callable[[], float] = time.monotonic) -> Transcript:
        """A new conversation. Nothing is on disk before the first `user`."""
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        return cls((directory or default_directory()) / f"{stamp}-{secrets.token_hex(3)}.jsonl", clock=clock)

    @classmethod
    def resume(cls, path: Path, *, clock: Callable[[], float] = time.monotonic) -> tuple[Transcript, Conversation]:
        """Go on with a conversation.

        Raises:
            TranscriptError: It cannot be read or written, is of a newer version, or is open elsewhere.
        """
        transcript = cls(path, clock=clock)
        try:
            transcript._fd = open_locked(path, os.O_RDWR)
            conversation = load(path)
            transcript._end_torn_line()
        except OSError as error:
            transcript.close()
            raise TranscriptError(f"The transcript {path} cannot be written: {reason(error)}.") from error
        except TranscriptError:
            transcript.close()
            raise
        transcript._created = conversation.header.created
        transcript._pair = conversation.pair
        transcript._controls = conversation.controls
        transcript._system = conversation.system
        transcript._setup = conversation.setup
        transcript._turn = conversation.user_turns
        return transcript, conversation

    def successor(self) -> Transcript:
        """A new conversation in the same directory, on the same pair, with the same settings and system message."""
        successor = Transcript.create(self.path.parent, clock=self._clock)
        successor._pair, successor._controls, successor._system = self._pair, self._controls, self._system
        successor._setup = self._setup
        return successor

    @property
    def id(self) -> str:
        """The name of the file without its ending: sorts by creation."""
        return self.path.stem

    def opened(self, info: Info, controls: Controls, bundle: str = "") -> None:
        """A pair was opened (at `Ready`): it writes the replies from here on."""
        self.pair(info, bundle)
        self.settings(controls)

    def pair(self, info: Info, bundle: str = "") -> None:
        """The pair that writes the replies from here on."""
        pair = PairName.of(info, bundle)
        if pair != self._pair:
            self._pair = pair
            self._append_if_begun({"type": "pair", "pair": plain(pair)})

    def settings(self, controls: Controls) -> None:
        """Chain or sampling were changed."""
        if controls != self._controls:
            self._controls = controls
            self._append_if_begun({"type": "settings", "controls": plain(controls)})

    def setup(self, setup: Setup) -> None:
        """Limit of a reply and template, from here on."""
        if setup != self._setup:
            self._setup = setup
            self._append_if_begun({"type": "setup", "setup": plain(setup)})

    def title(self, text: str) -> None:
        """Name the conversation; empty: by its first message again. Nothing happens before the first `user`."""
        self._append_if_begun({"type": "title", "text": text, "at": _now()})
        self._sync()

    def system(self, text: str) -> None:
        """The system message, from here on."""
        if text != self._system:
            self._system = text
            self._append_if_begun({"type": "message", "role": "system", "text": text, "at": _now()})

    def user(self, text: str) -> None:
        """The user's message; it is in the file when this returns. Call it before generating."""
        self.flush()
        self._turn += 1
        self._append({"type": "message", "role": "user", "text": text, "at": _now()})
        self._reply, self._written = [], 0

    def round(self, event: Round) -> None:
        """A round of the reply; written with those before it once a second."""
        if self._reply and event.index <= self._reply[-1].index:  # the message is answered anew
            self.flush()
            self._reply, self._written = [], 0
        self._reply.append(event)
        if self._clock() - self._flushed_at >= FLUSH_SECONDS:
            self.flush()

    def reply(self, finished: Finished, text: str | None = None, token_ids: Sequence[int] | None = None) -> None:
        """The reply is complete; text and ids are those of its rounds unless given."""
        text = reply_text(self._reply, finished) if text is None else text
        ids = reply_ids(self._reply, finished) if token_ids is None else tuple(token_ids)
        record = {"type": "reply", "text": text, "token_ids": list(ids), "finished": plain(finished)}
        self._append(record | {"controls": plain(self._controls), "at": _now()})
        self._reply, self._written = [], 0
        self._sync()

    def back(self, keep: int) -> None:
        """Of the conversation as it stands the first `keep` messages stay, and their replies."""
        self._append({"type": "change", "kind": "back", "value": keep, "at": _now()})
        self._reply, self._written = [], 0

    def undo(self) -> None:
        """What the last `back` took away is there again, in the place of what came after it."""
        self._append({"type": "change", "kind": "undo", "value": 0, "at": _now()})
        self._reply, self._written = [], 0

    def choose(self, place: int) -> None:
        """Of the replies to the last message the one at `place` (from 0) counts."""
        self._append({"type": "change", "kind": "choose", "value": place, "at": _now()})

    def go_on(self, place: int, rounds: Sequence[Round]) -> None:
        """The reply at `place` (from 0) to the last message goes on: what follows is added to its rounds."""
        self._append({"type": "continue", "value": place, "at": _now()})
        self._reply, self._written = list(rounds), len(rounds)

    def note(self, kind: str, text: str) -> None:
        """Something to remember: the worker died, the reply is partial."""
        self._append_if_begun({"type": "note", "kind": kind, "text": text, "at": _now()})
        self._sync()

    def flush(self) -> None:
        """Write the rounds that wait."""
        self._flushed_at = self._clock()
        if self._fd >= 0 and self._written < len(self._reply):
            waiting = self._reply[self._written :]
            self._written = len(self._reply)
            self._write(encode(self._numbered({"type": "rounds"} | pack_rounds(waiting))))

    def close(self) -> None:
        """Write what waits and let go of the file. Calling it again does nothing."""
        try:
            self.flush()
            self._sync()
        finally:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
            self._closed = True

    def _numbered(self, record: Record) -> Record:
        return record | {"turn": self._turn}  # last on the line: a listing finds it in the file's last bytes

    def _append_if_begun(self, record: Record) -> None:
        if self._fd >= 0:
            self._append(record)

    def _append(self, record: Record) -> None:
        if self.broken or self._closed:
            return
        if self._fd < 0:
            self._begin()
        self.flush()
        self._write(encode(self._numbered(record)))

    def _begin(self) -> None:
        try:
            private_directory(self.path.parent)
            self._fd = open_locked(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            sync_directory(self.path.parent)
        except OSError as error:
            self._fail(error)
        header = Header(self.id, self._created, __version__, self._pair, self._controls)
        self._write(encode({"type": "header", "format": FORMAT} | plain(header)))
        if self._system:
            system = {"type": "message", "role": "system", "text": self._system, "at": self._created}
            self._write(encode(system | {"turn": 0}))
        if self._setup is not None:
            self._write(encode({"type": "setup", "setup": plain(self._setup), "turn": 0}))

    def _end_torn_line(self) -> None:
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            self._write(b"\n")

    def _write(self, data: bytes) -> None:
        if self.broken:
            return
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            self._fail(error)

    def _sync(self) -> None:
        if self._fd >= 0 and not self.broken:
            try:
                os.fsync(self._fd)
            except OSError as error:
                self._fail(error)

    def _fail(self, error: OSError) -> None:
        self.broken = reason(error)
        raise TranscriptError(
            f"The transcript can no longer be written: {self.broken} ({self.path}).",
            "The chat goes on without it; start a new chat once there is room.",
        ) from error


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
