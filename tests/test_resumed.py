"""What a conversation that goes on brings with it, and what flags take from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3chat.arguments import build_parser
from eagle3chat.chat_command import resumed
from eagle3chat.engine.events import Info
from eagle3chat.engine.requests import Controls
from eagle3chat.transcript import Transcript, load
from eagle3chat.transcript_codec import Setup
from eagle3chat.wishes import read_wishes

INFO = Info("Model", "D", "llama", "torch", "cpu", "int4", "chatml", 512, 8, 3, "", (), 1.0, 10)


@pytest.mark.parametrize(
    ("setup", "argv", "limit", "template"),
    [
        (Setup(64, "llama3"), [], 64, "llama3"),
        (Setup(64, "llama3"), ["--max-new-tokens", "9", "--template", "gemma4"], 9, "gemma4"),
        (Setup(None, None), [], None, None),
        (None, ["--max-new-tokens", "9"], 9, None),
    ],
)
def test_limit_and_template(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    setup: Setup | None,
    argv: list[str],
    limit: int | None,
    template: str | None,
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "eagle3chat").mkdir()
    (tmp_path / "eagle3chat" / "settings.toml").write_text("max_new_tokens = 500\n")
    first, last = tmp_path / "first", tmp_path / "last"
    first.mkdir()
    last.mkdir()
    transcript = Transcript.create(tmp_path)
    transcript.opened(INFO, Controls(2), str(first))
    transcript.user("hi")
    transcript.opened(INFO, Controls(2), str(last))
    if setup is not None:
        transcript.setup(setup)
    transcript.close()
    args = build_parser().parse_args(argv)
    wishes = resumed(args, read_wishes(args), load(transcript.path))
    assert (wishes.max_new_tokens, wishes.options.template) == (limit, template)
    assert wishes.options.bundle == str(last)
