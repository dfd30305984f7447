"""The list of transcripts, and finding one by name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from eagle3chat.engine.errors import TranscriptError
from eagle3chat.engine.events import Info
from eagle3chat.engine.requests import Controls
from eagle3chat.transcript import Transcript, default_directory, find, list_transcripts

INFO = Info("m", "d", "llama", "torch", "cpu", "int4", "chatml", 64, 4, 3, "", (), 1.5, 1000)


def chat(directory: Path, name: str, *texts: str, age: int = 0) -> Path:
    transcript = Transcript(directory / f"{name}.jsonl")
    transcript.opened(INFO, Controls())
    for text in texts:
        transcript.user(text)
    transcript.close()
    os.utime(transcript.path, (1_800_000_000 - age, 1_800_000_000 - age))
    return transcript.path


def test_the_list_tells_title_model_turns_and_the_newest_first(tmp_path: Path) -> None:
    chat(tmp_path, "20260101-000000-aaaaaa", "\n  Why is the sky blue?  \nSecond line", "More", age=5)
    chat(tmp_path, "20260102-000000-bbbbbb", "x" * 500, age=9)
    (tmp_path / "other.jsonl").write_text("hello\n")
    (tmp_path / "notes.txt").write_text("hello\n")
    os.mkfifo(tmp_path / "pipe.jsonl")
    first, second = list_transcripts(tmp_path)
    assert (first.id, first.title, first.model, first.turns) == (
        "20260101-000000-aaaaaa",
        "Why is the sky blue?",
        "m",
        2,
    )
    assert first.modified == "2027-01-15T07:59:55+00:00"
    assert first.created.endswith("+00:00")
    assert first.size == first.path.stat().st_size
    assert (second.turns, second.title) == (1, "x" * 80)
    assert list_transcripts(tmp_path / "none") == []


def test_the_list_reads_only_the_ends_of_a_file(tmp_path: Path) -> None:
    path = chat(tmp_path, "a", "First")
    with path.open("r+b") as file:  # a hole of 8 GB between the ends: reading it would take minutes
        end = file.seek(0, os.SEEK_END)
        file.seek(end + (8 << 30))
        file.write(b'\n{"type":"message","role":"user","text":"Last","turn":41}\n{"type":"note","te')
    summary = list_transcripts(tmp_path)[0]
    assert (summary.title, summary.turns) == ("First", 41)


def test_text_cannot_forge_the_number_of_turns(tmp_path: Path) -> None:
    path = chat(tmp_path, "a", 'x,"turn":99}\n')
    assert list_transcripts(tmp_path)[0].turns == 1
    with path.open("ab") as file:
        file.write(path.read_bytes().splitlines()[1][:-12])
    assert list_transcripts(tmp_path)[0].turns == 1


def test_find(tmp_path: Path) -> None:
    old = chat(tmp_path, "20260101-000000-aaaaaa", "x", age=5)
    new = chat(tmp_path, "20260101-000000-bbbbbb", "x")
    longer = chat(tmp_path, "20260101-000000-aaaaaab", "x", age=9)
    assert find("last", tmp_path) == new
    assert find("20260101-000000-b", tmp_path) == new
    assert find("20260101-000000-aaaaaa", tmp_path) == old, "a whole id wins over the start of another"
    assert find("20260101-000000-aaaaaab", tmp_path) == longer
    assert find(str(new)) == new
    for name, message in [
        ("20260101", '3 transcripts begin with "20260101"'),
        ("2027", 'No transcript begins with "2027"'),
        ("", "begin with"),
        ("../" + tmp_path.name + "/20260101-000000-b", "No transcript begins"),
    ]:
        with pytest.raises(TranscriptError, match=message):
            find(name, tmp_path)
    alone = chat(tmp_path / "alone", "20260101-000000-aaaaaa", "x")
    assert find("2", alone.parent) == alone
    with pytest.raises(TranscriptError, match=r"begins? with"):
        find("", alone.parent)
    with pytest.raises(TranscriptError, match="no transcript"):
        find("last", tmp_path / "none")
    with pytest.raises(TranscriptError, match="No transcript"):
        find("a", tmp_path / "none")


def test_the_default_directory_is_the_users_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_directory().is_relative_to(tmp_path)
    assert default_directory().name == "transcripts"
    assert Transcript.create().path.parent == default_directory()
