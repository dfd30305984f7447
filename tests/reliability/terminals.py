"""A program on a pseudo-terminal that a test can close, stop, and look at."""

from __future__ import annotations

import contextlib
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
from collections.abc import Mapping
from pathlib import Path

import pyte

PROGRAM = Path(__file__).parent / "pty_program.py"
MOUSE_OFF = b"\x1b[?1003l"
SCREEN_BACK = b"\x1b[?1049l"
SECONDS = 20.0


class Terminal:
    """The chat on a pty, with a home of its own. `mounts`: shell commands that mount something for it alone."""

    def __init__(
        self,
        home: Path,
        *args: str,
        size: tuple[int, int] = (40, 100),
        env: Mapping[str, str] | None = None,
        mounts: str = "",
    ) -> None:
        self.home = home
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLORFGBG")}
            own = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8", "HOME": str(home)}
            own |= {f"XDG_{name}_HOME": str(home / name.lower()) for name in ("CONFIG", "DATA", "CACHE", "STATE")}
            command = [sys.executable, str(PROGRAM), *args]
            if mounts:
                command = ["/usr/bin/env", "unshare", "-rm", "sh", "-c", f'{mounts} && exec "$@"', "sh", *command]
            os.execve(command[0], command, kept | own | dict(env or {}))
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        self.before = termios.tcgetattr(self.fd)
        self.wrote = b""
        self.screen = pyte.Screen(size[1], size[0])
        self._stream = pyte.ByteStream(self.screen)

    def until(self, text: str, seconds: float = SECONDS) -> None:
        """Wait until the screen shows something."""
        end = time.monotonic() + seconds
        while not self.shows(text):
            assert time.monotonic() < end, "\n".join(self.screen.display)
            assert self.read(0.1), "\n".join(self.screen.display)

    def shows(self, text: str) -> bool:
        return any(text in line for line in self.screen.display)

    def read(self, seconds: float) -> bool:
        """Take what the program writes; whether it is still there."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return False
        self.wrote += data
        self._stream.feed(re.sub(rb"\x1b\[[<>=][\d;]*[a-z]|\x1bP[^\x1b]*\x1b\\", b"", data))
        return bool(data)

    def send(self, keys: bytes) -> None:
        os.write(self.fd, keys)

    def reply(self) -> None:
        """Ask, and wait until a reply streams."""
        self.until("chain")
        self.send(b"Tell me\r")
        self.until("Esc stop")
        self.until("tok/s")

    def end(self, seconds: float = SECONDS) -> int:
        """The exit code (negative: a signal), within a limit of time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.read(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                while self.read(0.05) and select.select([self.fd], [], [], 0.05)[0]:
                    pass
                return os.waitstatus_to_exitcode(status)
        raise AssertionError("it does not end:\n" + "\n".join(self.screen.display))

    def hang_up(self) -> int:
        """Close the terminal; the exit code."""
        os.close(self.fd)
        self.fd = -1
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.05)
        raise AssertionError("it does not end")

    def children(self) -> list[int]:
        """Processes that the program started."""
        files = Path(f"/proc/{self.pid}/task").glob("*/children")
        return [int(word) for file in files for word in file.read_text().split()]

    def restored(self) -> bool:
        """Whether the terminal is as it was."""
        return MOUSE_OFF in self.wrote and SCREEN_BACK in self.wrote and termios.tcgetattr(self.fd) == self.before

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        if self.fd >= 0:
            os.close(self.fd)


def gone(pids: list[int], seconds: float = 5.0) -> bool:
    """Whether processes end (or are zombies that init has not reaped)."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not any(_runs(pid) for pid in pids):
            return True
        time.sleep(0.02)
    return False


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
