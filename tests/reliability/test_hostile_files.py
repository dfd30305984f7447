"""Files that a person names, or that lie where the program looks: endless, pipes, too large, no text."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import tiny_bundle

from eagle3chat.bench import load_cases
from eagle3chat.cli import main
from eagle3chat.engine.checkpoint import open_target
from eagle3chat.engine.errors import Eagle3Error
from eagle3chat.engine.hf_config import target_config_json
from eagle3chat.engine.manifest import read_manifest
from eagle3chat.settings import load_settings
from eagle3chat.transcript_index import TranscriptIndex
from eagle3chat.ui.history import History

LIMIT = 1000
Spoil = Callable[[Path], object]


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagle3chat.run_command.MOST_CHARACTERS", LIMIT)
    monkeypatch.setattr("eagle3chat.bench.MOST_CHARACTERS", LIMIT)
    monkeypatch.setattr("eagle3chat.settings.MOST_BYTES", LIMIT)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (
            ["run", "--backend", "scripted", "--prompt-file", "/dev/zero"],
            "The prompt file /dev/zero cannot be read: it",
        ),
        (["run", "--backend", "scripted", "--prompt", "x", "--settings", "/dev/zero"], "The settings file /dev/zero"),
        (["bench", "--backend", "scripted", "--prompts", "/dev/zero"], "The prompts /dev/zero cannot be read"),
    ],
)
def test_a_file_without_an_end(argv: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err and "more than 1,000 characters" in err
    assert err.count("\n") == 1


def test_a_standard_input_without_an_end(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with open("/dev/zero", encoding="utf-8") as endless:
        monkeypatch.setattr("sys.stdin", endless)
        assert main(["run", "--backend", "scripted"]) == 2
    assert "more than 1,000 characters" in capsys.readouterr().err


def test_a_pipe_that_is_named_is_read(tmp_path: Path) -> None:
    ends = os.pipe()
    os.write(ends[1], b'{"id": "a", "prompt": "Hello"}\n')
    os.close(ends[1])
    assert [case.prompt for case in load_cases(Path(f"/dev/fd/{ends[0]}"))] == ["Hello"]
    os.close(ends[0])


def test_pipes_where_the_program_looks_are_not_waited_for(tmp_path: Path) -> None:
    place = tmp_path / "config" / "eagle3chat"
    place.mkdir(parents=True)
    os.mkfifo(place / "settings.toml")
    with pytest.raises(Eagle3Error, match="it is no regular file"):
        load_settings()
    os.mkfifo(tmp_path / "history")
    assert list(History(tmp_path / "history").entries) == []


def checkpoint(directory: Path) -> Path:
    bundle = tiny_bundle(directory, draft=False)
    manifest = read_manifest(bundle)
    path = directory / "checkpoint"
    shutil.copytree(bundle / "target", path)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(bundle / name, path / name)
    (path / "config.json").write_text(json.dumps(target_config_json(manifest.target, manifest.quantization)))
    return path


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="has no device that is full")
@pytest.mark.parametrize("where", ["--trace /dev/full", ">/dev/full"])
def test_an_output_on_a_full_disk_is_told_in_one_line(where: str) -> None:
    line = f"{sys.executable} -m eagle3chat run --backend scripted --prompt x --quiet {where}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "cannot be written or read: No space left on device." in done.stderr


@pytest.mark.parametrize("command", [["info"], ["run", "--prompt", "x", "--model"], ["--model"], ["replay"]])
def test_a_name_that_no_file_can_have(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eagle3chat.chat_command.at_terminal", lambda: True)
    monkeypatch.setattr("eagle3chat.replay_command.at_terminal", lambda: True)
    for name in ("a" * 5000, "x/" * 3000):
        assert main([*command, name]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    "argv",
    [
        ["transcripts", "search", "\udcff"],
        ["transcripts", "rename", "last", "\udcff"],
        ["run", "--backend", "scripted", "--prompt", "x", "--system", "\udcff"],
        ["run", "--backend", "scripted", "--prompt", "x", "--stop", "a", "--stop", "\udcff"],
        ["run", "--backend", "scripted", "--prompt", "\udcff"],
        ["run", "--backend", "scripted", "--prompt", "x", "--stop-token", "\udcff"],
        ["run", "--prompt", "x", "--server", "http://\udcff/"],
    ],
)
def test_arguments_that_are_no_text(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    err = capsys.readouterr().err
    assert "not UTF-8 text" in err and err.count("\n") == 1


def test_transcripts_where_no_directory_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    assert main(["transcripts"]) == main(["transcripts", "search", "x"]) == 0
    assert main(["transcripts", "show", "last"]) == main(["config", "--init", "--nonsense"]) == 2

    def refuse(path: object) -> None:
        raise PermissionError(13, "Permission denied")

    with TranscriptIndex(tmp_path) as index:
        monkeypatch.setattr("os.scandir", refuse)
        with pytest.raises(Eagle3Error, match="cannot be listed: Permission denied"):
            index.refresh()


@pytest.mark.parametrize("text", ["keys = " + "[" * 400, "keys = " + "{a=" * 400, "keys." + "a." * 450 + "b = 1"])
def test_settings_that_are_nested_too_deep(tmp_path: Path, text: str) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(text)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(300)
    try:
        with pytest.raises(Eagle3Error):
            load_settings(file)
    finally:
        sys.setrecursionlimit(limit)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def hole(path: Path) -> None:
    with path.open("ab") as file:
        file.truncate(1 << 40)


@pytest.mark.parametrize(
    "spoil", [pipe, hole, lambda path: path.write_bytes(b"caf\xe9")], ids=["pipe", "hole", "latin"]
)
@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja", "config.json", "tokenizer_config.json"])
def test_files_of_a_checkpoint(tmp_path: Path, name: str, spoil: Spoil) -> None:
    path = checkpoint(tmp_path)
    spoil(path / name)
    if name in ("chat_template.jinja", "tokenizer_config.json") and spoil is pipe:
        assert open_target(path).name == "checkpoint"  # as if there were none
        return
    with pytest.raises(Eagle3Error) as caught:
        open_target(path)
    assert name in str(caught.value)
