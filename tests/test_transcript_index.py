"""The index of transcripts: what it finds, and that it is never more than the files say."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from eagle3chat.engine.events import Finished, Info, Round, Token, Usage
from eagle3chat.engine.requests import Controls
from eagle3chat.transcript import Transcript
from eagle3chat.transcript_index import END, MARK, NAME, TranscriptIndex
from eagle3chat.transcript_store import delete, rename, undelete

INFO = Info("Model", "D", "llama", "torch", "cpu", "int4", "chatml", 512, 8, 3, "", (), 1.0, 10)
USAGE = Usage(5, 0, 1, 1, 0, 0, 0, (), (), (), 0.1, 0.1, 0.2)


def conversation(directory: Path, said: str, answer: str | None = None, *, ends: bool = True) -> Transcript:
    transcript = Transcript.create(directory)
    transcript.opened(INFO, Controls(0))
    transcript.user(said)
    if answer is not None:
        transcript.round(Round(0, 5, 0, 0.0, (), 0, Token(1, answer, None, 0.5), "plain", (), answer, 0.1))
        if ends:
            transcript.reply(Finished("stop", "", "", USAGE))
    transcript.close()
    return transcript


def found(directory: Path, words: str) -> list[str]:
    with TranscriptIndex(directory) as index:
        index.refresh()
        assert index.count(words) == len(index.search(words))
        return [hit.summary.title for hit in index.search(words)]


@pytest.mark.parametrize(
    ("words", "titles"),
    [
        ("", ["third", "second Ünder", "first"]),
        ("river", ["second Ünder", "first"]),
        ("RIV sto", ["second Ünder"]),
        ("under", ["second Ünder"]),
        ('"the river"', ["first"]),
        ('"the river', ["first"]),
        ("日本", ["third"]),
        ("++", ["third"]),
        ("river nowhere", []),
        ("AND OR NOT NEAR( * ^ : -", []),
        ('"', ["third", "second Ünder", "first"]),
        ("halted", ["third"]),
    ],
)
def test_search(tmp_path: Path, words: str, titles: list[str]) -> None:
    for at, (said, answer) in enumerate(
        (("first", "by the river"), ("second Ünder\nstones in a river", ""), ("third", "今日本語 C++ halted"))
    ):
        path = conversation(tmp_path, said, answer, ends=at < 2).path
        os.utime(path, (1000 + at, 1000 + at))
    assert found(tmp_path, words) == titles


def test_a_reply_that_broke_off_is_searched_and_a_complete_one_counts_once(tmp_path: Path) -> None:
    path = conversation(tmp_path, "one", "melon", ends=False).path
    again, _ = Transcript.resume(path)
    again.user("two")
    again.round(Round(0, 5, 0, 0.0, (), 0, Token(1, "kiwi", None, 0.5), "plain", (), "kiwi", 0.1))
    again.reply(Finished("stop", "", "", USAGE))
    again.close()
    assert found(tmp_path, "melon kiwi") == ["one"]
    with TranscriptIndex(tmp_path) as index:
        (body,) = index._db.execute("SELECT body FROM words").fetchone()
    assert body.split() == ["one", "melon", "two", "kiwi"]


def test_an_excerpt_marks_what_was_found(tmp_path: Path) -> None:
    conversation(tmp_path, "title", "a b c \x02 the\nRiver runs " + "far " * 60)
    with TranscriptIndex(tmp_path) as index:
        index.refresh()
        (hit,) = index.search("riv")
    assert f"the {MARK}River{END} runs" in hit.excerpt
    assert hit.excerpt.count(MARK) == 1 and "\n" not in hit.excerpt and len(hit.excerpt) < 120


def test_it_follows_the_files(tmp_path: Path) -> None:
    kept = conversation(tmp_path, "one apple", "ok")
    gone = conversation(tmp_path, "one pear", "ok")
    with TranscriptIndex(tmp_path) as index:
        assert index.refresh() == 2
        assert index.refresh() == 0
        again, _ = Transcript.resume(kept.path)
        again.user("and a plum")
        again.close()
        delete(gone.path)
        assert index.refresh() == 1
        assert [hit.summary.turns for hit in index.search("plum")] == [2]
        assert not index.search("pear")
        undelete(directory=tmp_path)
        rename(kept.path, "fruit")
        assert index.refresh() == 2
        assert {hit.summary.title for hit in index.search()} == {"fruit", "one pear"}
        assert len(index.search("apple")) == 1


@pytest.mark.parametrize("damage", ["garbage", "cut", "other", "version"])
def test_a_damaged_index_is_made_anew(tmp_path: Path, damage: str) -> None:
    conversation(tmp_path, "one apple", "ok")
    assert found(tmp_path, "apple") == ["one apple"]
    path = tmp_path / NAME
    if damage == "garbage":
        path.write_bytes(b"no database at all" * 1000)
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:5000])
    elif damage == "other":
        path.unlink()
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE session (x)")
        db.close()
    else:
        with sqlite3.connect(path) as db:
            db.execute("PRAGMA user_version = 99")
        db.close()
    assert found(tmp_path, "apple") == ["one apple"]
    assert path.stat().st_mode & 0o777 == 0o600
    with TranscriptIndex(tmp_path) as index:
        assert index.refresh() == 0  # it is in the file again


def test_a_directory_that_cannot_be_written_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conversation(tmp_path, "one apple", "ok")

    def refuse(*args: object) -> int:
        raise PermissionError(13, "no")

    monkeypatch.setattr("eagle3chat.transcript_index.os.open", refuse)
    assert found(tmp_path, "apple") == ["one apple"]
    assert not (tmp_path / NAME).exists()


def test_another_process_at_the_index_does_not_hinder_looking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagle3chat.transcript_index.BUSY_SECONDS", 0.01)
    conversation(tmp_path, "one apple", "ok")
    found(tmp_path, "apple")
    other = sqlite3.connect(tmp_path / NAME)
    other.execute("BEGIN IMMEDIATE")
    conversation(tmp_path, "two apples", "ok")
    with TranscriptIndex(tmp_path) as index:
        assert index.refresh() == 0
        assert len(index.search("app")) == 1
        other.close()
        assert index.refresh() == 1


def test_no_directory_and_no_transcripts(tmp_path: Path) -> None:
    assert found(tmp_path / "none", "") == []
    (tmp_path / "notes.jsonl").write_text("not a transcript\n")
    (tmp_path / "lone.jsonl").write_text('{"type":"message","role":"user","text":"\\ud800 odd","turn":1}\n')
    assert found(tmp_path, "odd") == ["? odd"]
