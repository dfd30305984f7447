"""The transcript as the chat writes it."""

from __future__ import annotations

from fake_worker import INFO

from eagle3chat.engine.requests import Controls
from eagle3chat.transcript import Transcript
from eagle3chat.transcript_read import load
from eagle3chat.ui.record import Record


def test_a_new_conversation_knows_its_pair(tmp_path):
    record = Record(Transcript.create(tmp_path), "some/bundle", lambda words: None)
    record.opened(INFO, Controls(), "")
    record.user("first")
    first = record.transcript
    record.renew()
    record.user("second")
    second = record.transcript
    record.close()
    assert first is not None and second is not None and first.path != second.path
    for transcript in (first, second):
        conversation = load(transcript.path)
        assert (conversation.pair.model, conversation.pair.bundle) == (INFO.model, "some/bundle")
        assert conversation.user_turns == 1
