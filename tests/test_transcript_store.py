"""Renaming, deleting, taking back, copying."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from eagle3chat.engine.errors import TranscriptError
from eagle3chat.engine.events import Finished, Info, Round, Token, Usage
from eagle3chat.engine.requests import Controls
from eagle3chat.transcript import Transcript, list_transcripts, load, to_messages
from eagle3chat.transcript_codec import Setup
from eagle3chat.transcript_index import TranscriptIndex
from eagle3chat.transcript_store import TRASH, delete, deleted, fork, rename, undelete

INFO = Info("Model", "D", "llama", "torch", "cpu", "int4", "chatml", 512, 8, 3, "", (), 1.0, 10)
USAGE = Usage(5, 0, 1, 1, 0, 0, 0, (), (), (), 0.1, 0.1, 0.2)


@pytest.fixture
def saved(tmp_path: Path) -> Transcript:
    """A conversation of two exchanges."""
    transcript = Transcript.create(tmp_path)
    transcript.setup(Setup(64, "chatml"))
    transcript.opened(INFO, Controls(0))
    for said in ("one", "two"):
        transcript.user(said)
        transcript.round(Round(0, 5, 0, 0.0, (), 0, Token(1, said, None, 0.5), "plain", (), said * 2, 0.1))
        transcript.reply(Finished("stop", "", "", USAGE))
    transcript.close()
    return transcript


def test_the_setup_stays(saved: Transcript) -> None:
    assert load(saved.path).setup == Setup(64, "chatml")
    again, _ = Transcript.resume(saved.path)
    again.setup(Setup(64, "chatml"))
    size = saved.path.stat().st_size
    again.setup(Setup(None, "gemma4"))
    again.close()
    assert saved.path.stat().st_size > size
    assert load(saved.path).setup == Setup(None, "gemma4")


def test_rename(saved: Transcript) -> None:
    os.utime(saved.path, (1000, 1000))
    rename(saved.path, "  a \n name ")
    assert load(saved.path).title == "a name"
    with TranscriptIndex(saved.path.parent) as index:
        index.refresh()
        assert [found.summary.title for found in index.search("name")] == ["a name"]
    assert saved.path.stat().st_mtime == 1000
    rename(saved.path, "")
    assert load(saved.path).title == ""
    assert load(saved.path).user_turns == 2


def test_what_is_open_is_left_alone(saved: Transcript) -> None:
    held, _ = Transcript.resume(saved.path)
    for change in (lambda: rename(saved.path, "x"), lambda: delete(saved.path)):
        with pytest.raises(TranscriptError, match="open in another"):
            change()
    assert saved.path.exists()
    held.close()


def test_delete_and_undelete(saved: Transcript) -> None:
    other = fork(saved.path)
    assert delete(saved.path) == saved.path.parent / TRASH / saved.path.name
    delete(other)
    assert not list_transcripts(saved.path.parent)
    assert set(deleted(saved.path.parent)) == {p.parent / TRASH / p.name for p in (saved.path, other)}
    assert undelete(saved.id, saved.path.parent) == saved.path
    assert undelete(directory=saved.path.parent) == other
    with pytest.raises(TranscriptError, match="no deleted transcript"):
        undelete(directory=saved.path.parent)
    assert len(list_transcripts(saved.path.parent)) == 2


def test_undelete_takes_nothing_in_the_place_of_another(saved: Transcript) -> None:
    data = saved.path.read_bytes()
    delete(saved.path)
    saved.path.write_bytes(data)
    with pytest.raises(TranscriptError, match="already"):
        undelete(directory=saved.path.parent)
    with pytest.raises(TranscriptError, match="No deleted transcript"):
        undelete("nothing", saved.path.parent)
    with pytest.raises(TranscriptError, match="cannot be changed"):
        delete(saved.path.parent / "missing.jsonl")


def test_fork(saved: Transcript) -> None:
    with saved.path.open("ab") as file:
        file.write(b'{"type":"message","role":"us')
    copy = fork(saved.path)
    before, after = load(saved.path), load(copy)
    assert (after.header.id, after.skipped) == (copy.stem, 0)
    assert after.turns == before.turns and copy.stem != saved.id
    assert copy.stat().st_mode & 0o777 == 0o600
    again, _ = Transcript.resume(copy)
    again.user("three")
    again.close()
    assert load(copy).user_turns == 3 and load(saved.path).user_turns == 2


def test_fork_of_the_beginning(saved: Transcript) -> None:
    assert [m.content for m in to_messages(load(fork(saved.path, keep=1)))] == ["one", "oneone"]


def test_no_fork_of_what_has_no_header(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"type":"message","role":"user","text":"hi","turn":1}\n')
    with pytest.raises(TranscriptError, match="no header"):
        fork(tmp_path / "x.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl"]
