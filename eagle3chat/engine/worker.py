"""The handle of the decode worker: a child process that owns the session, so that decoding and screen do not
share an interpreter, a crash leaves the chat standing, and leaving is bounded.

The child is a fresh interpreter that imports nothing of the caller's main program. It has a terminal neither
as its stdio (that is a log file) nor as its session, so no library in it can print over the screen. One socket
carries pickled values: commands one way, events the other. Knows no tensors and no screen.
"""

from __future__ import annotations

import os
import pickle
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path

from eagle3chat.engine.errors import WorkerError
from eagle3chat.engine.events import Event, Failed, Round
from eagle3chat.engine.requests import Adjust, Cancel, Close, Command, Controls, PairOptions, Say
from eagle3chat.engine.watchdog import Watchdog
from eagle3chat.engine.worker_log import WorkerLog

GRACE_SECONDS = 2.0  # for a child whose pipe has ended to end too
TICK_SECONDS = 0.5  # between two looks at the clock while nothing comes
DUMP_SECONDS = 0.3  # for a child that hangs to write into the log where it stands
BOOT = (
    f"import sys; sys.path[:] = sys.argv[1].split({os.pathsep!r}); "
    "from eagle3chat.engine.worker_process import main; main(int(sys.argv[2]), sys.argv[3])"
)


class DecodeWorker:
    """Starts, feeds and ends the child. Commands do not wait for it; `start`, `restart` and `close` may be called
    on another thread than the commands.

    Args:
        options: The pair that the child opens; a restart opens the same.
        on_event: Called on a thread of the worker with each event in order, and with one fatal Failed when
            the child dies or is ended because it hangs. It must return soon, and must not wait for a thread that
            is in `restart` or `close`.
        log_path: Where the child's stdout and stderr go; None: worker.log in the user's log directory.
        gather: Seconds for which what follows a round may wait. Who looks at rounds a few times a second spares both
            processes the waking, which takes time from the next round.
    """

    def __init__(
        self,
        options: PairOptions,
        on_event: Callable[[Event], None],
        *,
        log_path: Path | None = None,
        gather: float = 0.0,
    ) -> None:
        self.log_path = log_path or default_log_path()
        self._gather = gather
        self._options = options
        self._on_event = on_event
        self._child: _Child | None = None
        self._closed = False
        self._lock = threading.Lock()  # one start, restart or close at a time

    @property
    def alive(self) -> bool:
        """Whether there is a child that takes commands."""
        return self.pid is not None

    @property
    def pid(self) -> int | None:
        """The child's process id; None when there is none."""
        child = self._child
        return child.process.pid if child is not None and child.alive else None

    def start(self) -> None:
        """Start the child; Loading events follow, then Ready or Failed. Does nothing while one is alive.

        Raises:
            WorkerError: It cannot be started, or the worker was closed.
        """
        with self._lock:
            self._start()

    def say(self, say: Say) -> None:
        """Ask for a reply. Before Ready, and while a reply runs, it waits for its turn.

        Raises:
            WorkerError: The child is dead.
        """
        child = self._child
        if child is None or not child.alive:
            raise WorkerError("The decode worker is not running.", "Restart it; the chat is kept.")
        child.send(say)

    def adjust(self, controls: Controls) -> None:
        """Change the controls from the next round on. Dropped when the child is dead: Say carries them too."""
        self._send(Adjust(controls))

    def cancel(self) -> None:
        """End the running reply at its next step. Without one, or with a dead child, nothing happens."""
        self._send(Cancel())

    def restart(self) -> None:
        """End the child, whatever it is at, and start another. No event of the old one follows.

        Raises:
            WorkerError: It cannot be started, or the worker was closed.
        """
        with self._lock:
            if self._child is not None:
                self._child.retire(0.0)
            self._start()

    def close(self, timeout: float = 3.0) -> None:
        """End the child: ask, then terminate, then kill; at most `timeout` seconds. No event follows. Calling
        it again does nothing."""
        self._closed = True
        with self._lock:
            if self._child is not None:
                self._child.retire(timeout)

    def _start(self) -> None:
        if self._closed:
            raise WorkerError("The decode worker was closed.")
        if not self.alive:
            self._child = _Child(self._options, self._on_event, self.log_path, self._gather)

    def _send(self, command: Command) -> None:
        child = self._child
        if child is not None and child.alive:
            child.send(command)


class _Child:
    """One child process, from start to burial.

    A reader thread delivers events and buries the process; a writer thread sends commands, since a child that
    is busy or stopped does not read.
    """

    def __init__(self, options: PairOptions, on_event: Callable[[Event], None], log_path: Path, gather: float) -> None:
        self.alive = True
        self._gather = gather
        self._retired = False
        self._hung = 0.0  # seconds that it was waited for in vain
        self._watchdog = Watchdog.of_environment()
        self._on_event = on_event
        self._log = WorkerLog(log_path)
        self._outbox: queue.SimpleQueue[PairOptions | Command | None] = queue.SimpleQueue()
        self._outbox.put(options)
        self._pipe, theirs = Pipe()
        try:
            self.process = _spawn(theirs.fileno(), self._log)
        except OSError as error:
            self._pipe.close()
            raise WorkerError(f"The decode worker cannot be started: {error.strerror}.") from error
        finally:
            theirs.close()
        self._came = select.poll()
        self._came.register(self._pipe.fileno(), select.POLLIN)
        self._writer = threading.Thread(target=self._write, name="worker commands", daemon=True)
        self._reader = threading.Thread(target=self._read, name="worker events", daemon=True)
        self._writer.start()
        self._reader.start()

    def send(self, command: Command) -> None:
        """Queue a command."""
        self._watchdog.asked(command)
        self._outbox.put(command)

    def retire(self, timeout: float) -> None:
        """Deliver nothing more and end the process within about `timeout` seconds; 0 kills it at once."""
        self._retired = True
        self.alive = False
        steps: list[tuple[Callable[[], None], float]] = [(self.process.kill, max(0.2 * timeout, 0.5))]
        if timeout:
            asked = (lambda: self.send(Close()), 0.6 * timeout)
            steps = [asked, (self.process.terminate, 0.2 * timeout), *steps]
        for end, seconds in steps:
            if self._reader.is_alive():
                end()
                self._join(seconds)

    def _join(self, seconds: float) -> None:
        if threading.current_thread() is self._reader:  # called from on_event: it cannot wait for itself
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
        else:
            self._reader.join(seconds)

    def _write(self) -> None:
        while (command := self._outbox.get()) is not None:
            try:
                self._pipe.send(command)
            except OSError:  # the child is gone: the reader tells
                return

    def _read(self) -> None:
        told = False
        try:
            while not told and not self._retired and (events := self._receive()) is not None:
                for event in events:
                    told = isinstance(event, Failed) and event.fatal
                    self.alive = self.alive and not told
                    if not self._retired:
                        self._on_event(event)
                if self._gather and isinstance(events[-1], Round) and not self._came.poll(0):
                    time.sleep(self._gather)
        finally:
            code = self._bury()
        if not told and not self._retired:
            what, help = (hung(self._hung), "") if self._hung else (died(code), advice(code))
            fix = f"Restart it; the chat is kept. {help}Its log is {self._log.path}."
            self._on_event(Failed(what, fix, fatal=True))

    def _receive(self) -> tuple[Event, ...] | None:
        """The next events; None when the child is gone, perhaps in the middle of one, or was ended."""
        try:
            self._log.tend()
            while not self._came.poll(TICK_SECONDS * 1000):
                self._log.tend()
                if self._watchdog.waited(TICK_SECONDS):
                    self._end_hung()
                    return None
            events: tuple[Event, ...] = self._pipe.recv()
        except (EOFError, OSError, pickle.UnpicklingError):
            return None
        for event in events:
            self._watchdog.heard(event)
        return events

    def _end_hung(self) -> None:
        """Let the child write where it stands, if it can, and end it."""
        self.alive = False
        self._hung = self._watchdog.limit
        with suppress(OSError):
            self.process.send_signal(signal.SIGUSR1)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(DUMP_SECONDS)
        self.process.kill()

    def _bury(self) -> int:
        """Reap the process and close what belonged to it; its exit code."""
        self.alive = False
        try:
            code = self.process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self._outbox.put(None)
        self._writer.join()
        self._pipe.close()
        return code


def hung(seconds: float) -> str:
    """A sentence on why a process was ended."""
    return f"The decode worker did not answer for {seconds:g} s and was ended."


def died(code: int) -> str:
    """A sentence on why a process ended, from its exit code (negative: the signal)."""
    if code >= 0:
        return f"The decode worker ended by itself with exit code {code}."
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    guesses: dict[int, str] = {
        signal.SIGKILL: "; memory may be the reason: a system that runs out of it does this",
        signal.SIGBUS: "; a file that it had mapped was cut short, or its disk failed",
    }
    return f"The decode worker was killed by signal {-code} ({name}){guesses.get(-code, '')}."


def advice(code: int) -> str:
    """What helps against an exit code, as sentences with a space behind; empty: nothing special."""
    memory = "A smaller --context, --dtype int4 or a smaller model takes less memory. "
    return {-signal.SIGKILL: memory, -signal.SIGBUS: "Was the bundle changed? "}.get(code, "")


def default_log_path() -> Path:
    """worker.log in the user's log directory."""
    from platformdirs import user_log_path

    return user_log_path("eagle3chat") / "worker.log"


def _spawn(fd: int, log: WorkerLog) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(str(entry) or os.getcwd() for entry in sys.path)
    written = log.open()
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", BOOT, path, str(fd), str(log.path)],
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
            pass_fds=(fd,),
            start_new_session=True,  # signals of the terminal (Ctrl+C, Ctrl+Z) are not for it
        )
    finally:
        os.close(written)
