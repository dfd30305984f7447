"""The transcripts of a directory: the list of all, one by its name.

Nothing here writes or locks. A list reads the two ends of each file.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from eagle3chat.engine.errors import TranscriptError
from eagle3chat.transcript_codec import Header, Said
from eagle3chat.transcript_read import Reader

HEAD_LINES = 16  # the first user message is among them
LINE_LIMIT = 1 << 20  # bytes of a line that a listing reads
TAIL = 4096  # bytes at the end of a file that a listing reads
TITLE = 80  # characters
TURN = re.compile(rb',"turn":(\d+)}\n')


@dataclass(frozen=True, slots=True)
class Summary:
    """A transcript in a list."""

    id: str
    path: Path
    created: str  # ISO 8601, UTC
    modified: str  # ISO 8601, UTC
    model: str
    title: str  # as named (where the reader saw that), else the first line of the first user message; uncleaned
    turns: int  # user messages
    size: int  # bytes


def default_directory() -> Path:
    """Where transcripts live."""
    from platformdirs import user_data_path

    return user_data_path("eagle3chat") / "transcripts"


def list_transcripts(directory: Path | None = None) -> list[Summary]:
    """All transcripts of a directory, the one written last first. Reads the two ends of each file."""
    summaries = []
    try:
        with os.scandir(directory or default_directory()) as entries:
            for entry in entries:
                if not entry.name.endswith(".jsonl") or not entry.is_file():
                    continue
                if (summary := _summary(Path(entry.path))) is not None:
                    summaries.append((entry.stat().st_mtime_ns, summary))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise TranscriptError(f"The transcripts cannot be listed: {error}.") from error
    return [summary for _, summary in sorted(summaries, key=lambda pair: (pair[0], pair[1].id), reverse=True)]


def _summary(path: Path) -> Summary | None:
    """None: not a transcript, or gone meanwhile."""
    try:
        with path.open("rb") as file:
            head = [file.readline(LINE_LIMIT) for _ in range(HEAD_LINES)]
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL))
            tail = file.read(TAIL)
            modified = os.fstat(file.fileno()).st_mtime
    except OSError:
        return None
    reader = Reader(path)
    for line in filter(None, head):
        try:
            reader.take(line)
        except TranscriptError:  # a newer format: shown, as far as it can be
            reader.header = Header(path.stem, "")
        if any(isinstance(turn, Said) and turn.role == "user" for turn in reader.turns):
            break
    if reader.header is None and not reader.turns:
        return None
    texts = [turn.text for turn in reader.turns if isinstance(turn, Said) and turn.role == "user"]
    numbers = TURN.findall(tail)
    return Summary(
        id=path.stem,
        path=path,
        created=reader.header.created if reader.header else "",
        modified=datetime.fromtimestamp(modified, UTC).isoformat(timespec="seconds"),
        model=reader.pair.model,
        title=title_of(reader.title) or title_of(texts[0] if texts else ""),
        turns=int(numbers[-1]) if numbers else len(texts),
        size=size,
    )


def title_of(text: str) -> str:
    """The title that a text gives: its first line, or the beginning of that."""
    return text.strip().split("\n")[0][:TITLE].rstrip()


def _last(directory: Path) -> Path:
    """The transcript that was written last; the others are not opened."""
    stamps: list[tuple[int, str]] = []
    for path in directory.glob("*.jsonl"):
        with suppress(OSError):
            stamps.append((path.stat().st_mtime_ns, path.stem))
    for _, name in sorted(stamps, reverse=True):
        if _summary(path := directory / f"{name}.jsonl") is not None:
            return path
    raise TranscriptError(f"There is no transcript in {directory} yet.")


def find(reference: str, directory: Path | None = None) -> Path:
    """The transcript named by an id, the start of one, a file, or "last".

    Raises:
        TranscriptError: None or several fit.
    """
    directory = directory or default_directory()
    if reference.endswith(".jsonl") and Path(reference).is_file():
        return Path(reference)
    if reference == "last":
        return _last(directory)
    names = sorted(path.stem for path in directory.glob("*.jsonl"))
    fits = [name for name in names if name == reference] or [name for name in names if name.startswith(reference)]
    if len(fits) == 1 and reference:
        return directory / f"{fits[0]}.jsonl"
    what = f"{len(fits)} transcripts begin" if fits else "No transcript begins"
    raise TranscriptError(f'{what} with "{reference}".', "List them with: eagle3chat transcripts")
