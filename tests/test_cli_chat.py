"""`eagle3chat` without a command, up to the screen's entry."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_bundle

from eagle3chat.cli import main
from eagle3chat.engine.events import Info
from eagle3chat.engine.requests import Controls, PairOptions
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.worker import DecodeWorker
from eagle3chat.transcript import Transcript
from eagle3chat.ui.app import FLUSH_SECONDS

INFO = Info("Model", "D", "llama", "torch", "cpu", "int4", "chatml", 512, 8, 3, "", (), 1.0, 10)


@dataclass
class Screen:
    """What the screen was started with; it leaves at once."""

    options: PairOptions | None = None
    given: dict[str, Any] = field(default_factory=dict)

    def run_chat(self, options: PairOptions, **given: Any) -> int:
        self.options, self.given = options, given
        return 0


@pytest.fixture
def screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Screen:
    screen = Screen()
    monkeypatch.setattr("eagle3chat.ui.run.run_chat", screen.run_chat)
    monkeypatch.setattr("eagle3chat.chat_command.at_terminal", lambda: True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return screen


def test_what_nobody_says_is_a_warm_chat_that_is_saved(screen: Screen) -> None:
    assert main(["--backend", "scripted"]) == 0
    assert screen.options == PairOptions(backend="scripted")
    controls = screen.given["controls"]
    assert (controls.chain, controls.sampling.temperature) == (3, 0.8)
    assert (screen.given["max_new_tokens"], screen.given["system"], screen.given["conversation"]) == (None, None, None)
    assert isinstance(screen.given["transcript"], Transcript)


def test_flags_reach_the_screen(screen: Screen) -> None:
    argv = ["--chain", "0", "--temperature", "0", "--seed", "4", "--no-transcript", "--system", "S"]
    argv += ["--theme", "light", "--marks", "off", "--max-new-tokens", "9"]
    assert main([*argv, "--backend", "scripted"]) == 0
    made = screen.given.pop("worker_factory")
    assert made.func is DecodeWorker
    assert 0 < made.keywords["gather"] < FLUSH_SECONDS  # so that a drawing waits for no other
    assert screen.given == {
        "controls": Controls(0, Sampling(seed=4)),
        "keep_seed": True,
        "max_new_tokens": 9,
        "system": "S",
        "transcript": None,
        "conversation": None,
        "theme": "light",
        "marks": "off",
        "mouse": True,
        "keys": {},
    }


def test_the_bundle_says_the_chain_and_is_checked_before_the_screen(
    tmp_path: Path, screen: Screen, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = tiny_bundle(tmp_path, default_chain=2, max_chain=5)
    assert main(["--model", str(bundle)]) == 0
    assert screen.options is not None
    assert (screen.options.bundle, screen.given["controls"].chain) == (str(bundle), 2)
    screen.options = None
    assert main(["--model", str(bundle), "--chain", "6"]) == 2
    (bundle / "target" / "model.safetensors").unlink()
    assert main(["--model", str(bundle)]) == 2
    assert screen.options is None
    assert capsys.readouterr().err.count("\n") == 2


def test_the_builtin_pair_is_made_with_its_progress_told(
    tmp_path: Path, screen: Screen, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tiny_bundle(tmp_path)

    def make(progress: Any) -> Path:
        progress("reading", 0.1)
        progress("reading", 0.5)
        progress("writing", 0.9)
        return bundle

    monkeypatch.setattr("eagle3chat.engine.default_pair.default_bundle", make)
    assert main([]) == 0
    assert screen.options is not None
    assert screen.options.bundle == str(bundle)
    assert capsys.readouterr().err == "reading\nwriting\n"


def saved_chat(bundle: str) -> str:
    transcript = Transcript.create()
    transcript.opened(INFO, Controls(5, Sampling(temperature=0.3, seed=11)), bundle)
    transcript.system("Be brief.")
    transcript.user("Hi")
    transcript.close()
    return transcript.id


@pytest.mark.parametrize("argv", [["-c"], ["--continue"], ["--resume"], ["--resume", "last"], ["--resume", "ID"]])
def test_a_resumed_chat_goes_on_as_it_was(argv: list[str], tmp_path: Path, screen: Screen) -> None:
    bundle = tiny_bundle(tmp_path)
    name = saved_chat(str(bundle))
    assert main([name if word == "ID" else word for word in argv]) == 0
    assert screen.options is not None
    assert screen.options.bundle == str(bundle)
    assert screen.given["controls"] == Controls(5, Sampling(temperature=0.3, seed=11))
    assert screen.given["system"] == "Be brief."
    assert screen.given["conversation"].header.id == screen.given["transcript"].id == name


def test_a_private_chat_goes_on_with_another_and_writes_nothing(tmp_path: Path, screen: Screen) -> None:
    name = saved_chat(str(tiny_bundle(tmp_path)))
    before = {path: path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()}
    assert main(["--private", "-c"]) == 0
    assert screen.given["conversation"].header.id == name
    assert screen.given["transcript"] is None
    assert {path: path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()} == before
    assert main(["-c"]) == 0
    assert [path.name for path in set((tmp_path / "data").rglob("*.txt")) - set(before)] == ["recent-bundles.txt"]


def test_flags_win_over_a_resumed_chat(screen: Screen) -> None:
    saved_chat("/nonexistent/bundle")
    argv = ["-c", "--backend", "scripted", "--chain", "1", "--temperature", "0", "--system", "New."]
    assert main([*argv, "--frequency-penalty", "0.5"]) == 0
    assert screen.given["controls"] == Controls(1, Sampling(temperature=0.0, seed=11, frequency=0.5))
    assert not screen.given["keep_seed"], "it was drawn"
    assert screen.given["system"] == "New."
    assert screen.options is not None
    assert screen.options.bundle == ""  # the one that was used is gone


def test_nothing_to_resume(screen: Screen, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-c", "--backend", "scripted"]) == 2
    assert "no transcript" in capsys.readouterr().err


def test_what_is_piped_in_is_a_prompt_of_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr("sys.stdin", io.StringIO("Tell me\n"))
    assert main(["--backend", "scripted", "--chain", "2", "--max-new-tokens", "9"]) == 0
    told = capsys.readouterr()
    assert told.out.strip() and "\x1b" not in told.out + told.err
    assert "no terminal to chat in" in told.err and '"generated_tokens": 9' in told.err
    assert not list(tmp_path.rglob("*.jsonl"))
    monkeypatch.setattr("sys.stdin", io.StringIO("Tell me\n"))
    assert main(["--backend", "scripted", "-c"]) == 2
    assert "needs a terminal" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["--backend", "scripted"]) == 2
    assert "The prompt is empty" in capsys.readouterr().err


def test_the_mouse_is_left_to_the_terminal(screen: Screen, tmp_path: Path) -> None:
    assert main(["--backend", "scripted", "--no-mouse"]) == 0
    assert screen.given["mouse"] is False
    settings = tmp_path / "s.toml"
    settings.write_text("mouse = false\n")
    assert main(["--backend", "scripted", "--settings", str(settings)]) == 0
    assert screen.given["mouse"] is False
