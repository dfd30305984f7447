"""The chat on a real pseudo-terminal: what reaches it, and how it is left."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from pathlib import Path

import pyte
import pytest

HERE = Path(__file__).parent
MOUSE_OFF = b"\x1b[?1003l"
SCREEN_BACK = b"\x1b[?1049l"


class Terminal:
    """A child on a pty, and all that it wrote."""

    def __init__(self, *args: str, size: tuple[int, int] = (60, 100)) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLORFGBG")}
            own = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONPATH": str(HERE), "LANG": "C.UTF-8"}
            # An explicit environment: readline, where a test runner loads it, exports LINES and COLUMNS behind Python.
            os.execve(sys.executable, [sys.executable, str(HERE / "pty_chat.py"), *args], kept | own)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        self.wrote = b""
        self.screen = pyte.Screen(size[1], size[0])
        self._stream = pyte.ByteStream(self.screen)

    def until(self, text: str, seconds: float = 45.0) -> None:
        """Wait until the screen shows something."""
        end = time.monotonic() + seconds
        while not any(text in line for line in self.screen.display):
            assert time.monotonic() < end, "\n".join(self.screen.display)
            self.read(0.1)

    def read(self, seconds: float) -> bool:
        """Take what the child writes; whether it is still there."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return False
        self.wrote += data
        # pyte knows neither private ">" and "<" sequences nor DCS: what it would print of them is cut.
        self._stream.feed(re.sub(rb"\x1b\[[<>=][\d;]*[a-z]|\x1bP[^\x1b]*\x1b\\", b"", data))
        return bool(data)

    def send(self, keys: bytes) -> None:
        os.write(self.fd, keys)

    def end(self, seconds: float = 30.0) -> int:
        """The exit code, within a limit of time."""
        end = time.monotonic() + seconds
        while self.read(0.1):
            assert time.monotonic() < end, "it does not end"
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def stop(self) -> None:
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        os.close(self.fd)


@pytest.fixture
def terminal(request):
    child = Terminal(*getattr(request, "param", ()))
    yield child
    child.stop()


def test_no_code_of_the_model_reaches_the_terminal(terminal):
    terminal.until("chain 0 to 6")
    terminal.send(b"go\r")  # in one go, as a fast typist or a script does
    terminal.until("An error with")
    terminal.until("start ␛[2Jcleared")
    terminal.send(b"\x11")
    assert terminal.end() == 0
    assert b"OWNED" in terminal.wrote  # as text
    for code in (
        b"\x1b]0;OWNED",
        b"\x1b]52",
        b"\x1b[2J",
        b"\x1bPdcs",
        b"\x9b".decode("latin1").encode(),
        b"\x00",
        b"\x7f",
    ):
        assert code not in terminal.wrote, code
    assert "\u202e".encode() not in terminal.wrote
    assert b"\x1b[?1003hmouse" not in terminal.wrote
    for shown in ("␛[2Jcleared", "model␛[2J", "draft␛]0;OWNED␇", "An error with ␛[2J in it."):
        assert shown.encode() in terminal.wrote


def test_leaving_restores_the_terminal_and_closes_the_worker(terminal):
    terminal.until("chain 0 to 6")
    terminal.send(b"\x11")
    assert terminal.end() == 0
    assert MOUSE_OFF in terminal.wrote
    assert SCREEN_BACK in terminal.wrote
    assert terminal.wrote.index(SCREEN_BACK) < terminal.wrote.index(b"worker closed")


@pytest.mark.parametrize("terminal", [("hang",)], indirect=True)
@pytest.mark.parametrize(("sign", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_in_mid_reply_restores_the_terminal(terminal, sign, code):
    terminal.until("chain 0 to 6")
    terminal.send(b"go\r")  # in one go, as a fast typist or a script does
    terminal.until("Esc stop")
    os.kill(terminal.pid, sign)
    assert terminal.end() == code
    assert MOUSE_OFF in terminal.wrote
    assert SCREEN_BACK in terminal.wrote
    assert b"worker closed" in terminal.wrote


def test_a_paste_with_escape_codes_never_sends(terminal):
    terminal.until("chain 0 to 6")
    terminal.send(b"\x1b[200~first\x1b[A\rsecond\x1bline\r\x1b\rthird\r\x1b[201~")
    terminal.until("third")
    terminal.send(b"raw lines\rwithout marks\r")
    terminal.until("without marks")
    terminal.read(0.5)
    assert "An error with" not in "\n".join(terminal.screen.display)
    assert any("secondline" in line for line in terminal.screen.display)
    terminal.send(b"\r")
    terminal.until("An error with")


def test_the_editor_has_the_terminal_and_gives_it_back(tmp_path, monkeypatch):
    script = tmp_path / "edit.sh"
    script.write_text('#!/bin/sh\necho "THE EDITOR HAS IT"\nprintf " and edited" >> "$1"\nsleep 0.3\n')
    script.chmod(0o700)
    monkeypatch.setenv("VISUAL", str(script))
    child = Terminal()
    try:
        child.until("chain 0 to 6")
        child.send(b"draft\x0f")  # ctrl+o right behind the text
        child.until("draft and edited")
        assert b"THE EDITOR HAS IT" in child.wrote
        child.send(b"!")
        child.until("draft and edited!")
        child.send(b"\x11")
        assert child.end() == 0
    finally:
        child.stop()


@pytest.mark.parametrize("terminal", [["nomouse"]], indirect=True)
def test_the_terminal_is_asked_for_its_background_and_may_answer_late(terminal):
    terminal.until("chain 0 to 6")
    assert terminal.wrote.count(b"\x1b]11;?\x1b\\") == 1
    assert b"48;2;244;244;242" not in terminal.wrote
    terminal.send(b"ab\x1b]11;rgb:ffff/ff")  # in two halves, in the middle of what a person types
    terminal.read(0.3)
    terminal.send(b"ff/ffff\x07cd")
    terminal.until("abcd")
    while b"48;2;244;244;242" not in terminal.wrote:
        assert terminal.read(5.0)
    assert not any("rgb" in line for line in terminal.screen.display)
    terminal.send(b"\x11")
    assert terminal.end() == 0
    assert b"\x1b[?1000h" not in terminal.wrote and b"\x1b[?1003h" not in terminal.wrote
