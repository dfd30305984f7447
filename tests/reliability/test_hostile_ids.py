"""Token ids that are none of the target's, of a flag or of a transcript: told before a kernel looks them up."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import tiny_bundle

from eagle3chat.cli import main
from eagle3chat.engine.errors import PromptError
from eagle3chat.engine.events import Finished
from eagle3chat.engine.pair import open_pair
from eagle3chat.engine.requests import Controls, Message, PairOptions, Say
from eagle3chat.engine.session import Session

STRANGE = (-1, 2**31, 99_999_999, 10**30)


@pytest.mark.parametrize("id", [*STRANGE[1:], -2])
def test_a_bos_that_is_no_token(id: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for pair in (["--backend", "scripted"], ["--model", str(tiny_bundle(tmp_path))]):
        assert main(["run", *pair, "--prompt", "x", "--bos-id", str(id)]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert f"BOS id {id} is outside the vocabulary." in err


@pytest.mark.parametrize("backend", ["scripted", "torch"])
def test_a_reply_of_a_transcript_with_strange_ids(backend: str, tmp_path: Path) -> None:
    bundle = "" if backend == "scripted" else str(tiny_bundle(tmp_path))
    pair = open_pair(PairOptions(bundle=bundle, backend=backend, context=64))
    session = Session(pair)
    for id in (*STRANGE, pair.vocab_size):
        before = (Message("user", "a"), Message("assistant", "b", (1, id)))
        for messages in ((*before, Message("user", "c")), before):
            with pytest.raises(PromptError, match="outside the vocabulary"):
                list(session.reply(Say(messages, Controls(0), 2)))
    *_, last = session.reply(Say((Message("user", "a"),), Controls(0), 2))
    assert isinstance(last, Finished), "the session goes on"
    pair.close()
