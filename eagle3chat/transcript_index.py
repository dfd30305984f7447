"""A list of all transcripts that can be searched: an SQLite file beside them, made of them alone.

It can be deleted at any time: what is missing, older or damaged is read anew from the JSONL files. A file is read
again when its size or its time of change differs from what is noted. Where the file cannot be written (a read-only
directory, another process at it) the index lives in memory, or is as old as it is. Knows no screen.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from eagle3chat.engine.errors import TranscriptError
from eagle3chat.transcript_digest import Digest, digest
from eagle3chat.transcript_list import Summary, default_directory
from eagle3chat.transcript_query import Query

NAME = ".index.sqlite3"
VERSION = 1  # raise it when the tables change: an index of another version is made anew
BUSY_SECONDS = 1.0  # to wait for another process
MARK, END = "\x02", "\x03"  # around what was found, in an excerpt
EXCERPT_TOKENS = 14
TABLES = """
CREATE TABLE session (
    number INTEGER PRIMARY KEY, id TEXT UNIQUE, mtime INTEGER, size INTEGER,
    created TEXT, modified TEXT, model TEXT, title TEXT, turns INTEGER
);
CREATE INDEX session_mtime ON session (mtime DESC, id DESC);
CREATE VIRTUAL TABLE words USING fts5 (title, body, tokenize = "unicode61 remove_diacritics 2");
"""
ORDER = "mtime DESC, session.id DESC"
COLUMNS = "session.id, created, modified, model, session.title, turns, size"


@dataclass(frozen=True, slots=True)
class Found:
    """A transcript that was found."""

    summary: Summary
    excerpt: str = ""  # one line around the first hit, each hit between MARK and END; empty without words


class TranscriptIndex:
    """The transcripts of one directory. May be used on several threads, one at a time.

    Args:
        directory: None: where transcripts live.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory or default_directory()
        self._lock = threading.Lock()
        self._db = _open(self.directory / NAME)

    def __enter__(self) -> TranscriptIndex:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    def refresh(self) -> int:
        """Read what changed since the last time; how many transcripts were read."""
        with self._lock:
            try:
                return self._refresh()
            except sqlite3.DatabaseError as error:
                if not _is_damage(error):
                    return 0  # another process writes: what is there will do
                self._db.close()
                self._db = _open(self.directory / NAME, anew=True)
                return self._refresh()
            except OSError as error:
                raise TranscriptError(f"The transcripts cannot be listed: {error.strerror}.") from error

    def search(self, words: str = "", limit: int | None = None) -> list[Found]:
        """The transcripts in which all words occur, the one written last first; without words all of them.

        A word fits the beginning of a word, whatever its case and accents; "several words" in quotes stand together.
        """
        query = Query.of(words)
        where, values = query.where("words")
        excerpt = f"snippet(words, -1, '{MARK}', '{END}', '…', {EXCERPT_TOKENS})" if query.match else "''"
        joined = "JOIN words ON words.rowid = session.number" if not query.empty else ""
        sql = f"SELECT {COLUMNS}, {excerpt} FROM session {joined} WHERE {where} ORDER BY {ORDER} LIMIT ?"
        with self._lock, _told():
            rows = self._db.execute(sql, (*values, -1 if limit is None else limit)).fetchall()
        return [self._found(row, query) for row in rows]

    def count(self, words: str = "") -> int:
        """How many transcripts `search` would find."""
        query = Query.of(words)
        where, values = query.where("words")
        table = "session" if query.empty else "words"
        with self._lock, _told():
            number: int = self._db.execute(f"SELECT count(*) FROM {table} WHERE {where}", values).fetchone()[0]
        return number

    def _found(self, row: tuple[str, str, str, str, str, int, int, str], query: Query) -> Found:
        identity, created, modified, model, title, turns, size, excerpt = row
        path = self.directory / f"{identity}.jsonl"
        summary = Summary(identity, path, created, modified, model, title, turns, size)
        return Found(summary, " ".join(excerpt.split()) if MARK in excerpt else "")

    def _refresh(self) -> int:
        known = {row[0]: row[1:] for row in self._db.execute("SELECT id, mtime, size, number FROM session")}
        read = 0
        with self._db:  # one transaction
            for name, stamp in _files(self.directory):
                mtime, size, number = known.pop(name, (None, None, None))
                if stamp != (mtime, size):
                    found = digest(self.directory / f"{name}.jsonl")
                    self._forget(number)
                    self._add(name, stamp, found)
                    read += 1
            for _, _, number in known.values():
                self._forget(number)
        return read

    def _forget(self, number: int | None) -> None:
        if number is not None:
            self._db.execute("DELETE FROM words WHERE rowid = ?", (number,))
            self._db.execute("DELETE FROM session WHERE number = ?", (number,))

    def _add(self, name: str, stamp: tuple[int, int], found: Digest | None) -> None:
        if found is None:
            return  # no transcript, or gone: it is looked at again next time
        s = found.summary
        row = (name, *stamp, s.created, s.modified, s.model, s.title, s.turns)
        columns = "id, mtime, size, created, modified, model, title, turns"
        number = self._db.execute(f"INSERT INTO session ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row).lastrowid
        self._db.execute("INSERT INTO words (rowid, title, body) VALUES (?, ?, ?)", (number, s.title, found.text))


def _files(directory: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    """Name, and time of change and size, of each transcript."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith(".jsonl") and entry.is_file():
                with suppress(OSError):
                    stat = entry.stat()
                    yield entry.name[: -len(".jsonl")], (stat.st_mtime_ns, stat.st_size)


def _open(path: Path, anew: bool = False) -> sqlite3.Connection:
    """The index at a path; in memory where that cannot be."""
    with suppress(OSError):
        if anew:
            path.unlink(missing_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # its words are as private as theirs
        try:
            return _prepared(str(path))
        except sqlite3.DatabaseError as error:
            if not anew and _is_damage(error):
                return _open(path, anew=True)
    with _told():
        return _prepared(":memory:")


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise TranscriptError(
            f"The transcripts cannot be searched: {error}.", f"Deleting {NAME} beside them makes the index anew."
        ) from error


def _prepared(name: str) -> sqlite3.Connection:
    db = sqlite3.connect(name, timeout=BUSY_SECONDS, check_same_thread=False)
    try:
        db.execute("PRAGMA synchronous = OFF")  # a power cut costs the index, which can be made anew
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version == VERSION:
            return db
        if version or db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise _OtherVersionError(f"version {version}")
        db.executescript(f"BEGIN; {TABLES} PRAGMA user_version = {VERSION}; COMMIT;")
        return db
    except sqlite3.DatabaseError:
        db.close()
        raise


class _OtherVersionError(sqlite3.DatabaseError):
    """The index has other tables."""


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether the file is at fault, and not that someone else is at it or that it cannot be written."""
    return isinstance(error, _OtherVersionError) or not isinstance(error, sqlite3.OperationalError)
