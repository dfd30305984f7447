"""`eagle3chat run` on the scripted pair, in this process where that will do."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import tiny_bundle

from eagle3chat.cli import main
from eagle3chat.engine.events import Prefill, Round
from eagle3chat.engine.requests import Controls, Message, Say
from eagle3chat.run_command import Printer

SCRIPTED = ("run", "--backend", "scripted", "--prompt", "Hello")


@pytest.fixture(autouse=True)
def no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main([*SCRIPTED, *argv])
    return code, *capsys.readouterr()


def test_the_reply_goes_to_stdout_and_the_report_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--chain", "3", "--max-new-tokens", "20", "--seed", "5")
    assert code == 0
    assert len(out) > 20
    assert out.endswith("\n")
    assert not any(line in out for line in err.splitlines())
    lines = err.splitlines()
    assert lines[0].startswith("Prompt tokens: ")
    assert lines[0].endswith(", chain K=3, max_new=20")
    figures = json.loads(lines[-1])
    assert (figures["generated_tokens"], figures["chain"], figures["finish_reason"]) == (20, 3, "length")
    assert f"generated 20 tokens in {figures['rounds']} rounds (tau={20 / figures['rounds']:.3f})" in lines
    assert f"Prompt tokens: {figures['prompt_tokens']}, chain" in lines[0]


def test_json_is_one_document_with_the_reports_keys(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--max-new-tokens", "30", "--seed", "5")
    _, text, err = run(capsys, *flags)
    code, out, silent = run(capsys, *flags, "--json")
    assert (code, silent) == (0, "")
    document = json.loads(out)
    assert document["text"] == text.removesuffix("\n")
    assert len(document["token_ids"]) == document["stats"]["generated_tokens"] == 30
    assert document["finish_reason"] == document["stats"]["finish_reason"] == "length"
    assert list(document["stats"]) == list(json.loads(err.splitlines()[-1]))
    assert out.isascii()


@pytest.mark.parametrize("temperature", ["0", "0.8", "1.2"])
def test_the_chain_never_changes_the_reply(temperature: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--json", "--seed", "11", "--temperature", temperature, "--max-new-tokens", "60")
    replies = [json.loads(run(capsys, *flags, "--chain", chain)[1]) for chain in ("0", "1", "3", "8")]
    assert all(reply["token_ids"] == replies[0]["token_ids"] for reply in replies)
    assert replies[0]["stats"]["rounds"] == 60
    assert replies[2]["stats"]["rounds"] < 60


def test_a_bundle_decodes_the_same_with_and_without_drafts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["run", "--model", str(tiny_bundle(tmp_path)), "--prompt", "tea", "--dtype", "float32", "--json"]
    flags += ["--temperature", "0.8", "--seed", "2", "--max-new-tokens", "30"]
    replies = []
    for chain in ("0", "4"):
        assert main([*flags, "--chain", chain]) == 0
        replies.append(json.loads(capsys.readouterr().out))
    plain, drafted = replies
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["text"] == plain["text"]
    assert (plain["stats"]["accepted"], plain["stats"]["tau"]) == (0, 1.0)
    assert drafted["stats"]["accepted"] > 0
    assert (drafted["stats"]["backend"], drafted["stats"]["dtype"]) == ("torch", "float32")


def test_a_stop_string_ends_the_reply(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--json", "--temperature", "0.8", "--seed", "5")
    whole = json.loads(run(capsys, *flags)[1])["text"]
    stop = whole[20:24]
    document = json.loads(run(capsys, *flags, "--stop", stop)[1])
    assert document["text"] == whole[: whole.index(stop)]
    assert (document["finish_reason"], document["stop"]) == ("stop", stop)


def test_quiet_leaves_stderr_empty(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, err = run(capsys, "--quiet", "--max-new-tokens", "5")
    assert out.strip()
    assert err == ""


def test_a_check_is_told_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "--check", "--quiet", "--max-new-tokens", "3")
    assert code == 0
    assert err.startswith("a pass of 4 rows beside 4 passes of one: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("temperature", ["0", "0.9"])
def test_penalties_change_the_reply_and_the_chain_does_not(
    temperature: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--temperature", temperature, "--seed", "2", "--max-new-tokens", "150", "--quiet")
    penalties = ("--repetition-penalty", "1.3", "--presence-penalty", "2", "--frequency-penalty", "2")
    plain = run(capsys, *flags, "--chain", "0")[1]
    replies = {run(capsys, *flags, *penalties, "--chain", chain)[1] for chain in ("0", "2", "5")}
    assert len(replies) == 1
    assert replies != {plain}


def test_the_trace_has_a_line_a_round(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rounds.jsonl"
    _, out, _ = run(capsys, "--json", "--trace", str(file), "--max-new-tokens", "25")
    document = json.loads(out)
    rounds = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(rounds) == document["stats"]["rounds"]
    assert "".join(r["text"] for r in rounds) == document["text"]
    ids = [t["id"] for r in rounds for t in [*r["drafted"][: r["accepted"]], *([r["own"]] if r["own"] else [])]]
    assert ids == document["token_ids"]


def test_the_prompt_comes_from_a_file_or_from_stdin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("Hello\n")
    flags = ["run", "--backend", "scripted", "--json", "--max-new-tokens", "3"]
    monkeypatch.setattr("sys.stdin", io.StringIO("Hello\n"))
    counts = []
    for source in (["--prompt", "Hello"], ["--prompt-file", str(file)], []):
        assert main([*flags, *source]) == 0
        counts.append(json.loads(capsys.readouterr().out)["stats"]["prompt_tokens"])
    assert counts[0] == counts[1] == counts[2]


def test_raw_prompts_and_system_messages_change_the_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    def tokens(*argv: str) -> int:
        return int(json.loads(run(capsys, "--json", "--max-new-tokens", "3", *argv)[1])["stats"]["prompt_tokens"])

    assert tokens("--raw-prompt") == 5  # the scripted tokenizer spells in bytes
    assert tokens("--raw-prompt") < tokens() < tokens("--system", "Be brief.")
    assert tokens("--chat-prefix", "ab", "--chat-suffix", "c") == 8


class Interrupting(io.StringIO):
    """A stdout that presses Ctrl+C once, when text arrives."""

    def write(self, text: str) -> int:
        if not self.getvalue():
            signal.raise_signal(signal.SIGINT)
        return super().write(text)


def test_an_interrupt_keeps_what_there_is_and_reports(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, before = Interrupting(), signal.getsignal(signal.SIGINT)
    monkeypatch.setattr("sys.stdout", out)
    assert main([*SCRIPTED, "--max-new-tokens", "100"]) == 130
    figures = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert figures["finish_reason"] == "cancelled"
    assert 0 < figures["generated_tokens"] < 20
    assert out.getvalue().endswith("\n")
    assert signal.getsignal(signal.SIGINT) is before


def test_a_reader_that_has_gone_ends_it_quietly() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "eagle3chat", *SCRIPTED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 141
    assert "Traceback" not in err
    assert "Exception" not in err


def written(text: str, *, terminal: bool, monkeypatch: pytest.MonkeyPatch) -> str:
    out = io.StringIO()
    out.isatty = lambda: terminal  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdout", out)
    say = Say((Message("user", "x"),), Controls(0), 5)
    printer = Printer(say, 100, text=True, report=False, trace=None)
    printer(Prefill(1, 1, 0))
    printer(Round(0, 2, 0, 0.0, (), 0, None, None, (), text, 0.1))
    return out.getvalue()


def test_control_codes_are_shown_on_a_terminal_and_kept_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a\x1b[2J\x9b1m\x07‮\tb\n"
    assert written(text, terminal=False, monkeypatch=monkeypatch) == text
    shown = written(text, terminal=True, monkeypatch=monkeypatch)
    assert shown.startswith("a␛[2J")
    assert not set(shown) & set("\x1b\x9b\x07‮")
    assert shown.endswith("b\n")
