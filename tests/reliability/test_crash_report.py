"""A mistake of ours: one line on the screen, and a report without anything of the person's."""

from __future__ import annotations

import queue
import stat
from pathlib import Path

import pytest

from eagle3chat.cli import MENDABLE, MISTAKE, main
from eagle3chat.engine import crash
from eagle3chat.engine.events import Event, Failed
from eagle3chat.engine.private_files import private_directory
from eagle3chat.engine.requests import PairOptions
from eagle3chat.engine.worker import DecodeWorker

SECRET = "my secret prompt"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def broken(argv: list[str], error: Exception, monkeypatch: pytest.MonkeyPatch) -> int:
    def fail(args: object) -> int:
        try:
            raise error
        except ValueError as inner:
            raise RuntimeError(f"/home/someone/diary.txt {SECRET}") from inner

    monkeypatch.setattr("eagle3chat.run_command.run", fail)
    return main(argv)


def test_a_mistake_of_ours_is_one_line_and_a_report(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["run", "--prompt", SECRET, f"--system={SECRET}", "--backend", "scripted"]
    assert broken(argv, ValueError(SECRET), monkeypatch) == MISTAKE
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "This is a mistake in eagle3chat (RuntimeError)." in err
    assert SECRET not in err
    [path] = (home / "state").rglob("crash-*.txt")
    assert str(path) in err
    text = path.read_text()
    assert "command   run --prompt --system --backend" in text
    assert text.index("ValueError") < text.index("RuntimeError")
    assert "cli.py" in text and " in fail" in text
    for private in (SECRET, "diary", str(Path.home()) + "/", str(home)):
        assert private not in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for level in (path.parent, path.parent.parent, path.parent.parent.parent):
        assert stat.S_IMODE(level.stat().st_mode) == 0o700, level


def test_no_report_can_be_written(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "state").write_text("a file")
    assert broken(["run", "--prompt", "x"], ValueError(), monkeypatch) == MISTAKE
    assert capsys.readouterr().err == "eagle3chat: This is a mistake in eagle3chat (RuntimeError).\n"


def test_old_reports_go(tmp_path: Path) -> None:
    for number in range(crash.KEPT + 3):
        (tmp_path / f"crash-2000-{number:02}.txt").write_text("old")
    path = crash.write_report(ValueError(), [], tmp_path)
    assert path is not None
    left = sorted(tmp_path.iterdir())
    assert len(left) == crash.KEPT
    assert left[-1] == path


def test_too_little_memory_is_told_and_is_no_mistake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(args: object) -> int:
        raise MemoryError

    monkeypatch.setattr("eagle3chat.run_command.run", fail)
    assert main(["run", "--prompt", "x"]) == MENDABLE
    assert "not enough memory" in capsys.readouterr().err


def test_every_level_of_a_private_directory_is_private(tmp_path: Path) -> None:
    private_directory(tmp_path / "a" / "b")
    private_directory(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700
    (tmp_path / "file").write_text("")
    for taken in (tmp_path / "file", tmp_path / "file" / "b"):
        with pytest.raises((FileExistsError, NotADirectoryError)):
            private_directory(taken)


def test_a_mistake_in_the_worker_is_reported_as_well(home: Path) -> None:
    events: queue.Queue[Event] = queue.Queue()
    log = home / "log" / "worker.log"
    worker = DecodeWorker(PairOptions(backend="scripted", context="x"), events.put, log_path=log)  # type: ignore[arg-type]
    worker.start()
    while not isinstance(event := events.get(timeout=20), Failed):
        pass
    worker.close()
    assert event.fatal
    assert event.message.startswith("The decode worker failed: TypeError")
    [path] = (home / "log" / "crashes").iterdir()
    assert str(path) in event.fix and str(log) in event.fix
    assert "TypeError" in path.read_text() and str(home) not in path.read_text()
