"""Ctrl+C shows no traceback, at whatever it comes; a clock that is set makes no time absurd."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from eagle3chat import foreground
from eagle3chat.cli import main

PRESS = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder())
sys.argv = ["eagle3chat", "info"]
from eagle3chat.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("name", ["eagle3chat.cli", "eagle3chat.arguments", "eagle3chat.info_command"])
def test_ctrl_c_while_modules_are_read(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", PRESS.format(name=name)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_ctrl_c_while_the_interpreter_ends() -> None:
    last = "import atexit, os, signal; atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
    code = last + PRESS.format(name="nothing").replace('"info"', '"--version"')
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == -2
    assert done.stderr == ""


def test_a_library_that_makes_an_error_of_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(args: object) -> int:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise ImportError("half a library") from error

    monkeypatch.setattr("eagle3chat.info_command.info", fail)
    assert main(["info"]) == 130
    assert capsys.readouterr() == ("", "")


def test_a_clock_that_is_set_back_changes_no_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    before = foreground.now_ms()
    wall = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: wall() - 7200 * 10**9)
    monkeypatch.setattr(time, "time", lambda: wall() / 1e9 - 7200)
    assert before <= foreground.now_ms() < before + 60_000
    assert abs(before - wall() // 1_000_000) < 86_400_000, "Unix time"
