"""A wall clock that is set back in mid-chat: the conversation keeps its order."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from eagle3chat import transcript
from eagle3chat.engine.events import Finished, Round, Usage
from eagle3chat.transcript import Transcript
from eagle3chat.transcript_codec import Reply, Said
from eagle3chat.transcript_read import load

USAGE = Usage(9, 3, 7, 2, 4, 1, 1, (2, 2, 1), (2, 1, 1), (2, 2, 2), 0.25, 0.5, 0.3)


def test_a_transcript_has_its_order_from_its_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hours = itertools.count(23, -1)
    monkeypatch.setattr(transcript, "_now", lambda: f"2026-01-01T{next(hours):02}:00:00.000+00:00")
    ticks = itertools.count()
    written = Transcript.create(tmp_path, clock=lambda: float(next(ticks)))  # seconds that never go back
    for text in ("one", "two", "three"):
        written.user(text)
        written.round(Round(0, 5, 0, 0.8, (), 0, None, None, (), text.upper(), 0.01))
        written.reply(Finished("stop", "", "", USAGE))
    written.close()
    again, conversation = Transcript.resume(written.path)
    again.close()
    assert conversation.skipped == 0
    assert [turn.text for turn in conversation.turns if isinstance(turn, Said | Reply)] == [
        *("one", "ONE", "two", "TWO", "three", "THREE")
    ]
    assert [turn.text for turn in load(written.path).turns] == [turn.text for turn in conversation.turns]
