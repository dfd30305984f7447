"""`eagle3chat transcripts`."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3chat.cli import main
from eagle3chat.engine.events import Finished, Info, Round, Token, Usage
from eagle3chat.engine.requests import Controls
from eagle3chat.transcript import Transcript

INFO = Info("Model\x1b[2J", "D", "llama", "torch", "cpu", "int4", "chatml", 512, 8, 3, "", (), 1.0, 10)
ROUND = Round(0, 5, 0, 0.0, (), 0, Token(1, "Hi", None, 0.5), "plain", (), "Hi \x1b[31mthere", 0.1)
USAGE = Usage(5, 0, 1, 1, 0, 0, 0, (), (), (), 0.1, 0.1, 0.2)


@pytest.fixture(autouse=True)
def data_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


@pytest.fixture
def saved() -> Transcript:
    """A conversation of two turns, the second one broken off."""
    transcript = Transcript.create()
    transcript.opened(INFO, Controls(0))
    transcript.system("Be brief.")
    transcript.user("Say hi\nplease")
    transcript.round(ROUND)
    transcript.reply(Finished("stop", "", "", USAGE))
    transcript.user("Again \x9b2J")
    transcript.round(ROUND)
    transcript.close()
    return transcript


def test_none_yet(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transcripts"]) == 0
    assert "no saved conversations" in capsys.readouterr().out


def test_the_list_has_a_line_each(saved: Transcript, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transcripts"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(saved.id)
    assert "Model" in line
    assert "2 turns" in line
    assert line.endswith("Say hi")
    assert line.isprintable()


def test_show_prints_it_as_plain_text(saved: Transcript, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transcripts", "show", "last"]) == 0
    out = capsys.readouterr().out
    assert not set(out) & {"\x1b", "\x9b"}
    order = ["# system", "Be brief.", "# you", "Say hi\nplease", "# model (1 tokens", "there", "# you", "broken off"]
    places = [out.index(part, 0) for part in order[:6]]
    assert places == sorted(places)
    assert out.rindex("# you") < out.index(order[-1])


def test_path(saved: Transcript, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transcripts", "path", saved.id]) == 0
    assert capsys.readouterr().out == f"{saved.path}\n"
