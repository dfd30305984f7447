"""The whole program on a pty, and what can befall it: signals, a closed terminal, a stop, a mistake of ours."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from terminals import Terminal, gone

from eagle3chat.transcript_codec import Reply, Said
from eagle3chat.transcript_read import load

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
Start = Callable[..., Terminal]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[Terminal] = []

    def begin(*args: str, **options: object) -> Terminal:
        running.append(Terminal(tmp_path, *args, **options))  # type: ignore[arg-type]
        return running[-1]

    yield begin
    for terminal in running:
        terminal.stop()


def kept(home: Path) -> tuple[str, str]:
    """The message and the reply that the transcript holds."""
    [path] = (home / "data").rglob("*.jsonl")
    conversation = load(path)
    assert conversation.skipped == 0
    [said] = [t.text for t in conversation.turns if isinstance(t, Said) and t.role == "user"]
    return said, "".join(t.text for t in conversation.turns if isinstance(t, Reply))


@pytest.mark.parametrize(
    ("sign", "code"),
    [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)],
)
def test_a_storm_of_signals_in_mid_reply(start: Start, tmp_path: Path, sign: signal.Signals, code: int) -> None:
    terminal = start()
    terminal.reply()
    time.sleep(1.2)  # more than a second: rounds are on disk
    children = terminal.children()
    for _ in range(20):
        os.kill(terminal.pid, sign)
        time.sleep(0.01)
    assert terminal.end() == code
    assert terminal.restored()
    assert b"Traceback" not in terminal.wrote
    assert gone(children)
    said, reply = kept(tmp_path)
    assert (said, reply != "") == ("Tell me", True)


def test_a_signal_while_the_screen_is_at_work(start: Start, tmp_path: Path) -> None:
    terminal = start("late")
    terminal.reply()
    os.kill(terminal.pid, signal.SIGTERM)
    assert terminal.end() == 143
    assert terminal.restored()
    assert not list(tmp_path.rglob("crash-*"))


def test_kill_9_loses_a_second_at_most_and_the_next_start_goes_on(start: Start, tmp_path: Path) -> None:
    terminal = start()
    terminal.reply()
    time.sleep(2.2)
    children = terminal.children()
    os.kill(terminal.pid, signal.SIGKILL)
    assert terminal.end() == -signal.SIGKILL
    assert gone(children), "the worker ends with its parent"
    said, reply = kept(tmp_path)
    assert said == "Tell me"
    assert len(reply) > 20
    again = start("-c")
    again.until(reply.split()[0])
    again.until("chain")
    again.send(b"\x11")
    assert again.end() == 0


def test_a_closed_terminal_ends_the_program_and_its_worker(start: Start, tmp_path: Path) -> None:
    terminal = start()
    terminal.reply()
    children = terminal.children()
    assert terminal.hang_up() == 129
    assert gone(children)
    assert kept(tmp_path)[0] == "Tell me"


def test_a_closed_terminal_without_the_signal(start: Start) -> None:
    terminal = start("deaf")
    terminal.reply()
    assert terminal.hang_up() == 129


def test_ctrl_z_and_fg(start: Start) -> None:
    terminal = start()
    terminal.reply()
    terminal.send(b"\x1a")
    end = time.monotonic() + 10
    while os.waitpid(terminal.pid, os.WUNTRACED | os.WNOHANG)[0] == 0:
        terminal.read(0.05)
        assert time.monotonic() < end, "it does not stop"
    while terminal.read(0.0) and time.monotonic() < end and not terminal.restored():
        pass
    assert terminal.restored(), "the shell has its terminal"
    time.sleep(0.5)
    terminal.wrote = b""
    os.kill(terminal.pid, signal.SIGCONT)
    end = time.monotonic() + 10
    while b"\x1b[?1049h" not in terminal.wrote:
        assert time.monotonic() < end, "the screen does not come back"
        terminal.read(0.05)
    terminal.send(b"And more\r")
    terminal.until("And more")
    terminal.send(b"\x11")
    assert terminal.end() == 0
    assert terminal.restored()


def test_a_slow_terminal_gets_everything_in_the_end(start: Start) -> None:
    terminal = start("--max-new-tokens", "30")
    terminal.until("chain")
    terminal.send(b"Tell me\r")
    time.sleep(4)  # nobody reads: the pty and the writer's queue are full
    terminal.until("length limit")
    terminal.send(b"\x11")
    assert terminal.end() == 0
    assert terminal.restored()


def test_a_worker_that_is_killed_is_told_with_its_log_and_restarts(start: Start, tmp_path: Path) -> None:
    terminal = start()
    terminal.reply()
    os.kill(terminal.children()[0], signal.SIGKILL)
    terminal.until("memory may be the reason")
    terminal.until("worker.log")
    terminal.send(b"\x1b[15~")  # F5
    terminal.until("chain 0 to")
    terminal.send(b"Once more\r")
    terminal.until("Esc stop")
    terminal.send(b"\x11")
    assert terminal.end() == 0


def test_a_worker_that_hangs_is_ended(start: Start) -> None:
    terminal = start(env={"EAGLE3CHAT_PATIENCE": "1"})
    terminal.reply()
    os.kill(terminal.children()[0], signal.SIGSTOP)
    terminal.until("did not answer for 1 s")
    terminal.send(b"\x11")
    assert terminal.end() == 0


def test_a_mistake_of_ours_ends_in_one_line(start: Start, tmp_path: Path) -> None:
    terminal = start("crash")
    terminal.reply()
    terminal.send(b"\x1bOR")  # F3
    assert terminal.end() == 70
    assert terminal.restored()
    last = terminal.wrote[terminal.wrote.rindex(b"\x1b[?1049l") :].decode()
    assert "This is a mistake in eagle3chat (RuntimeError)." in last
    assert "Traceback" not in last
    assert "no terminal should show" not in last
    assert list(tmp_path.rglob("crash-*.txt"))
    assert kept(tmp_path)[0] == "Tell me"


@pytest.mark.parametrize("command", ["", "run"])
def test_streams_that_are_closed(command: str, tmp_path: Path) -> None:
    env = os.environ | {f"XDG_{name}_HOME": str(tmp_path) for name in ("CONFIG", "DATA", "STATE")}
    for closed, code in (("<&- >/dev/null", 2), ("<&- >&-", 2), ("</dev/null >&- 2>&-", 2)):
        line = f"{sys.executable} -m eagle3chat {command} --backend scripted {closed}"
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60, env=env)
        assert done.returncode == code, (line, done.stderr)
        told = 1 if command else 2  # without a terminal the chat says that it reads one prompt
        assert done.stderr.count("\n") in ((0,) if "2>&-" in closed else (1, told)), done.stderr
    assert not list(tmp_path.rglob("crash-*"))
