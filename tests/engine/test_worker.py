"""The decode worker with its real child process, on the scripted pair."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import eagle3chat.engine.worker as worker_module
from eagle3chat.engine.errors import WorkerError
from eagle3chat.engine.events import Event, Failed, Finished, Loading, Prefill, Ready, Round
from eagle3chat.engine.pair import open_pair
from eagle3chat.engine.requests import Controls, Message, PairOptions, Say
from eagle3chat.engine.session import Session
from eagle3chat.engine.worker import DecodeWorker, died
from eagle3chat.engine.worker_log import LOG_BYTES
from eagle3chat.engine.worker_process import FIRST_TO_GO

OPTIONS = PairOptions(backend="scripted", script_seconds=0.002)
LONG = Say((Message("user", "Tell me"),), Controls(3), max_new_tokens=2000)
SHORT = Say((Message("user", "Tell me"),), Controls(3), max_new_tokens=20)
SECONDS = 10.0  # before a test gives up


class Screen:
    """A worker and the events that came."""

    def __init__(self, log: Path, options: PairOptions = OPTIONS) -> None:
        self.queue: queue.Queue[Event] = queue.Queue()
        self.worker = DecodeWorker(options, self.queue.put, log_path=log)

    def next(self) -> Event:
        return self.queue.get(timeout=SECONDS)

    def until(self, *kinds: type) -> list[Event]:
        """The events up to the first of a kind."""
        events = [self.next()]
        while not isinstance(events[-1], kinds):
            events.append(self.next())
        return events

    def streaming(self, rounds: int = 3) -> None:
        """Ask for a long reply and wait for its first rounds."""
        self.worker.say(LONG)
        for _ in range(rounds):
            self.until(Round)

    def quiet(self) -> list[Event]:
        """What came unasked."""
        time.sleep(0.1)
        return list(self.queue.queue)

    @property
    def pid(self) -> int:
        assert self.worker.pid is not None
        return self.worker.pid


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "worker.log"


@pytest.fixture(scope="module")
def shared(log: Path) -> Iterator[Screen]:
    screen = Screen(log)
    screen.worker.start()
    screen.until(Ready)
    yield screen
    screen.worker.close()


@pytest.fixture
def screen(shared: Screen) -> Screen:
    """A worker that waits for a message; one process for most tests."""
    assert not shared.queue.queue
    if not shared.worker.alive:
        shared.worker.restart()
        shared.until(Ready)
    return shared


def gone(pid: int, seconds: float) -> bool:
    """Whether a process ends, and leaves no zombie of ours."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.005)
    return False


def orphan_ended(pid: int) -> bool:
    """Whether a process that is not our child ends; its zombie is for init to reap."""
    deadline = time.monotonic() + 3.0
    while time.monotonic() < deadline:
        if gone(pid, 0.02):
            return True
        with contextlib.suppress(OSError):  # on Linux, where init may be slow to reap in a container
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
    return False


def text_of(events: list[Event]) -> str:
    return "".join(e.text for e in events if isinstance(e, Round | Finished))


def test_a_reply_streams_and_is_the_sessions_own(screen: Screen) -> None:
    screen.worker.say(SHORT)
    events = screen.until(Finished)
    session = Session(open_pair(PairOptions(backend="scripted")))
    expected = list(session.reply(SHORT))
    assert text_of(events) == text_of(expected) != ""
    assert isinstance(events[0], Prefill)
    assert [e.drafted for e in events if isinstance(e, Round)] == [e.drafted for e in expected if isinstance(e, Round)]


def test_only_what_follows_rounds_waits_and_all_of_it_comes_at_once(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    say = replace(LONG, max_new_tokens=600)
    came: list[Event] = []
    told: list[str] = []
    over = threading.Event()

    def take(event: Event) -> None:
        came.append(event)
        if isinstance(event, Finished | Failed):
            over.set()

    def sleep(seconds: float) -> None:
        told.append(f"{seconds} after {type(came[-1]).__name__}")
        time.sleep(seconds)

    def receive(child: object) -> tuple[Event, ...] | None:
        events = received(child)
        if events and isinstance(events[-1], Round):
            told.append("received")
        return events

    received = worker_module._Child._receive
    monkeypatch.setattr(worker_module._Child, "_receive", receive)
    monkeypatch.setattr(worker_module, "time", SimpleNamespace(sleep=sleep))
    worker = DecodeWorker(OPTIONS, take, log_path=log, gather=0.15)
    worker.start()
    worker.say(say)
    assert over.wait(SECONDS)
    worker.close()
    assert text_of(came) == text_of(list(Session(open_pair(PairOptions(backend="scripted"))).reply(say)))
    assert set(told) == {"received", "0.15 after Round"}
    assert told.count("received") > 2 * told.count("0.15 after Round")


def test_controls_change_at_the_next_round(screen: Screen) -> None:
    screen.streaming()
    screen.worker.adjust(Controls(1))
    seen = [screen.until(Round)[-1].chain for _ in range(40)]
    screen.worker.cancel()
    screen.until(Finished)
    assert seen == sorted(seen, reverse=True)
    assert set(seen) in ({1}, {3, 1})


def test_cancel_keeps_what_came_and_the_next_reply_works(screen: Screen) -> None:
    screen.streaming()
    screen.worker.cancel()
    finished = screen.until(Finished)[-1]
    assert isinstance(finished, Finished)
    assert finished.reason == "cancelled"
    assert 3 <= finished.usage.rounds < 200
    screen.worker.say(SHORT)
    assert screen.until(Finished)[-1].reason == "length"  # type: ignore[union-attr]


def test_an_error_of_a_reply_leaves_the_worker_standing(screen: Screen) -> None:
    screen.worker.say(Say(SHORT.messages, Controls(99)))
    failed = screen.until(Failed)[-1]
    assert isinstance(failed, Failed)
    assert not failed.fatal
    screen.worker.say(SHORT)
    screen.until(Finished)


def test_a_killed_worker_is_told_once_and_restarts(screen: Screen) -> None:
    screen.streaming()
    old = screen.pid
    os.kill(old, signal.SIGKILL)
    failed = screen.until(Failed)[-1]
    assert isinstance(failed, Failed)
    assert failed.fatal
    assert "killed by signal 9 (SIGKILL); memory may be the reason" in failed.message
    assert "takes less memory" in failed.fix
    assert str(screen.worker.log_path) in failed.fix
    assert (screen.worker.alive, screen.worker.pid) == (False, None)
    assert screen.quiet() == []
    assert gone(old, 1.0), "a zombie is left"
    screen.worker.cancel()
    screen.worker.adjust(Controls(0))
    with pytest.raises(WorkerError, match="not running"):
        screen.worker.say(SHORT)
    screen.worker.restart()
    assert isinstance(screen.until(Ready)[-1], Ready)
    screen.worker.say(SHORT)
    assert isinstance(screen.until(Finished)[-1], Finished)


def test_a_restart_in_mid_reply_lets_nothing_of_the_old_child_through(screen: Screen) -> None:
    screen.streaming()
    old = screen.pid
    screen.worker.restart()
    while not screen.queue.empty():
        screen.queue.get()
    assert screen.pid != old
    assert gone(old, 1.0)
    assert [type(e) for e in screen.until(Ready) if not isinstance(e, Loading)] == [Ready]
    screen.worker.say(SHORT)
    rounds = [e for e in screen.until(Finished) if isinstance(e, Round)]
    assert [r.index for r in rounds] == list(range(len(rounds)))


def test_a_restart_from_the_event_callback(log: Path) -> None:
    ready = threading.Semaphore(0)
    pids: list[int | None] = []

    def on_event(event: Event) -> None:
        if isinstance(event, Ready):
            pids.append(worker.pid)
            if len(pids) == 1:
                worker.restart()
            ready.release()
        if isinstance(event, Failed):
            assert not worker.alive
            worker.restart()

    worker = DecodeWorker(OPTIONS, on_event, log_path=log)
    worker.start()
    assert ready.acquire(timeout=SECONDS)
    assert ready.acquire(timeout=SECONDS)
    assert pids[1] is not None
    os.kill(pids[1], signal.SIGKILL)
    assert ready.acquire(timeout=SECONDS)
    assert len(set(pids)) == 3
    assert worker.alive
    worker.close()


def test_close_while_another_thread_starts(log: Path) -> None:
    def start(screen: Screen) -> None:
        with contextlib.suppress(WorkerError):
            screen.worker.start()

    for _ in range(5):
        screen = Screen(log)
        thread = threading.Thread(target=start, args=(screen,))
        thread.start()
        screen.worker.close()
        thread.join()
        assert not screen.worker.alive


def test_a_crash_is_told_with_its_signal_and_prints_to_the_log_alone(
    screen: Screen, capfd: pytest.CaptureFixture[str]
) -> None:
    os.kill(screen.pid, signal.SIGSEGV)
    failed = screen.until(Failed)[-1]
    assert isinstance(failed, Failed)
    assert failed.message == "The decode worker was killed by signal 11 (SIGSEGV)."
    assert "Fatal Python error: Segmentation fault" in screen.worker.log_path.read_text()
    assert capfd.readouterr() == ("", "")


def test_ctrl_c_is_not_for_the_child_and_sigterm_is(screen: Screen) -> None:
    assert os.getsid(screen.pid) != os.getsid(0)
    os.kill(screen.pid, signal.SIGINT)
    screen.worker.say(SHORT)
    screen.until(Finished)
    os.kill(screen.pid, signal.SIGTERM)
    failed = screen.until(Failed)[-1]
    assert isinstance(failed, Failed)
    assert "signal 15 (SIGTERM)" in failed.message


def test_a_screen_that_reads_slowly_gets_everything_in_order(log: Path) -> None:
    block = threading.Event()
    events: queue.Queue[Event] = queue.Queue()

    def on_event(event: Event) -> None:
        if isinstance(event, Prefill):
            block.wait(SECONDS)
        events.put(event)

    worker = DecodeWorker(PairOptions(backend="scripted"), on_event, log_path=log)
    worker.start()
    worker.say(Say(LONG.messages, Controls(3)))  # about a thousand rounds: more than the pipe holds
    time.sleep(0.5)
    block.set()
    seen: list[Event] = []
    while not (seen and isinstance(seen[-1], Finished)):
        seen.append(events.get(timeout=SECONDS))
    worker.close()
    rounds = [e.index for e in seen if isinstance(e, Round)]
    assert rounds == list(range(seen[-1].usage.rounds))  # type: ignore[union-attr]


def test_commands_to_a_stopped_child_do_not_wait_and_close_is_bounded(log: Path) -> None:
    screen = Screen(log)
    screen.worker.start()
    screen.until(Ready)
    pid = screen.pid
    os.kill(pid, signal.SIGSTOP)
    start = time.monotonic()
    screen.worker.say(Say((Message("user", "x" * 5_000_000),), Controls()))
    screen.worker.cancel()
    assert time.monotonic() - start < 1.0
    screen.worker.close(timeout=1.0)
    assert time.monotonic() - start < 3.0
    assert gone(pid, 1.0)
    assert screen.quiet() == []


def test_close_is_quick_idempotent_and_final(log: Path) -> None:
    screen = Screen(log)
    screen.worker.close()
    screen = Screen(log)
    screen.worker.start()
    first = screen.pid
    screen.worker.start()
    assert screen.pid == first, "one child"
    screen.until(Ready)
    screen.streaming()
    start = time.monotonic()
    screen.worker.close()
    assert time.monotonic() - start < 1.5, "it had to be killed"
    assert gone(first, 1.0)
    screen.worker.close()
    assert not screen.worker.alive
    for call in (screen.worker.start, screen.worker.restart):
        with pytest.raises(WorkerError, match="closed"):
            call()
    with pytest.raises(WorkerError):
        screen.worker.say(SHORT)
    assert not [e for e in screen.quiet() if isinstance(e, Failed)]


def test_close_while_loading(log: Path) -> None:
    screen = Screen(log)
    screen.worker.start()
    pid = screen.pid
    start = time.monotonic()
    screen.worker.close()
    assert time.monotonic() - start < 2
    assert gone(pid, 1.0)


def test_a_pair_that_cannot_be_opened_is_told_once(log: Path) -> None:
    alive = True

    def put(event: Event) -> None:
        nonlocal alive
        alive = screen.worker.alive
        screen.queue.put(event)

    screen = Screen(log)
    screen.worker = DecodeWorker(PairOptions(backend="scripted", context=1), put, log_path=log)
    screen.worker.start()
    failed = screen.until(Failed)[-1]
    assert isinstance(failed, Failed)
    assert failed.fatal
    assert failed.message.startswith("A context of 1")
    assert not alive
    assert screen.quiet() == []
    assert not screen.worker.alive
    screen.worker.close()


def test_no_descriptor_thread_or_process_is_left(log: Path) -> None:
    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd" if sys.platform == "linux" else "/dev/fd")), threading.active_count()

    before = held()
    for how in ("close", "kill", "restart"):
        screen = Screen(log)
        screen.worker.start()
        screen.until(Ready)
        if how == "kill":
            os.kill(screen.pid, signal.SIGKILL)
            screen.until(Failed)
        if how == "restart":
            screen.worker.restart()
        screen.worker.close()
    deadline = time.monotonic() + 1
    while held() != before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert held() == before


PARENT = """
import os, sys, threading
from pathlib import Path
from eagle3chat.engine.events import Prefill, Ready
from eagle3chat.engine.requests import Controls, Message, PairOptions, Say
from eagle3chat.engine.worker import DecodeWorker
ready, deep = threading.Event(), threading.Event()
def on_event(event):
    if isinstance(event, Ready): ready.set()
    if isinstance(event, Prefill): deep.set()
worker = DecodeWorker(PairOptions(backend="scripted", script_seconds=30.0), on_event, log_path=Path(sys.argv[1]))
worker.start()
assert ready.wait(10)
if sys.argv[2] == "mid-round":
    worker.say(Say((Message("user", "x"),), Controls()))
    assert deep.wait(10)
print(worker.pid, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("when", ["idle", "mid-round"])
def test_the_child_ends_when_its_parent_is_killed(log: Path, tmp_path: Path, when: str) -> None:
    script = tmp_path / "unguarded.py"  # without `if __name__ == "__main__"`: the child must not import it
    script.write_text(PARENT)
    done = subprocess.run([sys.executable, script, log, when], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert done.stderr == ""
    pid = int(done.stdout)
    try:
        assert orphan_ended(pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_the_log_is_private_and_rotated(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "worker.log"
    path.parent.mkdir()
    path.write_bytes(b"x" * (LOG_BYTES + 1))
    old = os.umask(0)
    try:
        screen = Screen(path)
        screen.worker.start()
    finally:
        os.umask(old)
    screen.until(Ready)
    screen.worker.close()
    assert path.with_name("worker.log.1").stat().st_size == LOG_BYTES
    assert path.stat().st_size < 1000
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's alone")
def test_where_memory_runs_out_the_worker_goes_first(log: Path) -> None:
    screen = Screen(log)
    screen.worker.start()
    screen.until(Ready)
    ours, its = (Path(f"/proc/{pid}/oom_score_adj").read_text() for pid in ("self", screen.pid))
    screen.worker.close()
    assert int(its) == FIRST_TO_GO > int(ours)


def test_a_log_that_grows_while_the_worker_runs_is_cut(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagle3chat.engine.worker_log.LOOK_SECONDS", 0.0)
    screen = Screen(log)
    screen.worker.start()
    screen.until(Ready)
    with log.open("ab") as file:
        file.write(b"x" * (LOG_BYTES + 1))
    screen.streaming(1)
    screen.worker.close()
    assert log.stat().st_size < 1000
    assert log.with_name("worker.log.1").stat().st_size == LOG_BYTES


def test_a_log_that_cannot_be_written_does_not_stop_a_chat(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    screen = Screen(tmp_path / "file" / "worker.log")
    screen.worker.start()
    assert isinstance(screen.until(Ready)[-1], Ready)
    screen.worker.close()


def test_a_worker_that_cannot_be_started(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    fds = len(os.listdir("/dev/fd"))
    with pytest.raises(WorkerError, match="cannot be started: No such file"):
        Screen(log).worker.start()
    assert len(os.listdir("/dev/fd")) == fds


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (3, "The decode worker ended by itself with exit code 3."),
        (-6, "The decode worker was killed by signal 6 (SIGABRT)."),
        (-77, "The decode worker was killed by signal 77 (unknown)."),
    ],
)
def test_the_reason_of_a_death(code: int, message: str) -> None:
    assert died(code) == message
