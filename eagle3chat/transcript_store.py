"""What becomes of a transcript as a whole: named, set aside, taken back, copied.

A deleted transcript moves into a folder beside the others, from which it can be taken back. A transcript that an
eagle3chat has open is left alone. Knows files and the format's records, no screen.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from eagle3chat.engine.errors import TranscriptError
from eagle3chat.transcript import Transcript
from eagle3chat.transcript_codec import Record, decode, encode
from eagle3chat.transcript_file import open_locked
from eagle3chat.transcript_list import default_directory

TRASH = "trash"  # beside the transcripts


def rename(path: Path, title: str) -> None:
    """Name a transcript; empty: it is called by its first message again. When it was written last stays.

    Raises:
        TranscriptError: It is open elsewhere, or cannot be written.
    """
    try:
        before = path.stat()
    except OSError as error:
        raise _told(path, error) from error
    transcript, _ = Transcript.resume(path)
    try:
        transcript.title(" ".join(title.split()))
    finally:
        transcript.close()
    with suppress(OSError):
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def delete(path: Path) -> Path:
    """Set a transcript aside; where it is now.

    Raises:
        TranscriptError: It is open elsewhere, or cannot be moved.
    """
    trash = path.parent / TRASH
    try:
        os.close(open_locked(path, os.O_RDWR))
        trash.mkdir(mode=0o700, exist_ok=True)
        return path.rename(trash / path.name)
    except OSError as error:
        raise _told(path, error) from error


def deleted(directory: Path | None = None) -> list[Path]:
    """The transcripts that were set aside, the last one first."""
    trash = (directory or default_directory()) / TRASH
    return sorted(trash.glob("*.jsonl"), key=lambda path: (path.stat().st_ctime_ns, path.name), reverse=True)


def undelete(reference: str = "last", directory: Path | None = None) -> Path:
    """Take a transcript back: the one deleted last, or that whose id begins so. Where it is now.

    Raises:
        TranscriptError: There is none, or several fit.
    """
    aside = deleted(directory)
    fits = aside[:1] if reference == "last" else [path for path in aside if path.stem.startswith(reference)]
    if len(fits) != 1:
        what = f"{len(fits)} deleted transcripts begin" if fits else "No deleted transcript begins"
        raise TranscriptError(f'{what} with "{reference}".' if aside else "There is no deleted transcript.")
    back = fits[0].parent.parent / fits[0].name
    if back.exists():
        raise TranscriptError(f"There is a transcript {back} already.", "Move it away first.")
    try:
        return fits[0].rename(back)
    except OSError as error:
        raise _told(fits[0], error) from error


def fork(path: Path, keep: int | None = None) -> Path:
    """A copy under an id of its own, to go on from there; the copy's path.

    Args:
        path: May be open elsewhere: what it holds so far is copied.
        keep: Of the messages of the user only the first so many, with their replies; None: all.

    Raises:
        TranscriptError: It cannot be read, is no transcript, or the copy cannot be written.
    """
    try:
        lines = path.read_bytes().split(b"\n")[:-1]  # what stands behind the last newline is torn
        header = _header(path, lines)
        now = datetime.now(UTC)
        copy = path.parent / f"{now.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}.jsonl"
        forked = header | {"id": copy.stem, "created": now.isoformat(timespec="milliseconds"), "forked_from": path.stem}
        whole = encode(forked) + b"".join(line + b"\n" for line in lines[1:])
        if keep is not None:
            at = now.isoformat(timespec="milliseconds")
            whole += encode({"type": "change", "kind": "back", "value": keep, "at": at, "turn": _turn(lines)})
        _write_new(copy, whole)
    except OSError as error:
        raise _told(path, error) from error
    return copy


def _header(path: Path, lines: list[bytes]) -> Record:
    with suppress(ValueError, IndexError, KeyError):
        header = decode(lines[0])
        if header["type"] == "header":
            return header
    raise TranscriptError(f"{path} has no header, so it cannot be copied.", "Its first line is damaged or missing.")


def _turn(lines: list[bytes]) -> int:
    for line in reversed(lines):
        with suppress(ValueError):
            if type(turn := decode(line).get("turn")) is int:
                return turn
    return 0


def _write_new(path: Path, data: bytes) -> None:
    """A file that is there whole or not at all."""
    part = path.with_suffix(".part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _told(path: Path, error: OSError) -> TranscriptError:
    return TranscriptError(f"The transcript {path} cannot be changed: {(error.strerror or str(error)).lower()}.")
