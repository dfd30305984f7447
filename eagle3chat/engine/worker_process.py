"""The decode worker's own process: commands in, events out, one session.

Two threads. The main one opens the pair and decodes. The other reads commands, so that a cancel is there
between two rounds without asking the kernel, and ends the process at once on Close or when the parent is gone
(the pipe ends), whatever the main one is at: the kernel frees what was held. Knows no screen; tensors only
through the pair it opens. What this process prints goes to the log file that the parent made its stdout.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import pickle
import queue
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from eagle3chat.engine.bundle_stamp import Decoder, Guarded, Stamp
from eagle3chat.engine.crash import write_report
from eagle3chat.engine.errors import Eagle3Error, SettingError
from eagle3chat.engine.events import Event, Failed, Info, Loading, Ready, Round
from eagle3chat.engine.requests import Adjust, Cancel, Close, Controls, PairOptions, Say

LOADING_SECONDS = 0.05  # at least, between two Loading events of one stage
FIRST_TO_GO = 500  # of 1000
GATHER_SECONDS = 0.03  # between two sendings of rounds
log = logging.getLogger("eagle3chat.worker")

Progress = Callable[[str, float | None], None]


Opener = Callable[[PairOptions, Progress], tuple[Info, Decoder]]


def main(fd: int, log_path: str) -> None:
    """Serve the parent at the other end of a socket, whose first message is the PairOptions."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is the parent's to understand
    with suppress(OSError):  # Linux's alone: where memory runs out this process goes, and not the screen
        Path("/proc/self/oom_score_adj").write_text(str(FIRST_TO_GO), encoding="ascii")
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # the parent's question where a child that hangs stands
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(process)d %(levelname)s %(message)s")
    pipe = Connection(fd)
    options = pipe.recv()
    inbox = Inbox(pipe, leave)
    Server(
        inbox, Sender(pipe), log_path, lambda error: write_report(error, ["worker"], Path(log_path).parent / "crashes")
    ).run(options, open_session)
    leave()


def open_session(options: PairOptions, progress: Progress) -> tuple[Info, Decoder]:
    """Open the pair and a session on it."""
    from eagle3chat.engine.pair_check import open_checked, settle
    from eagle3chat.engine.session import Session

    stamps = _stamps(options)  # before the weights are read: a change while they are is one too
    pair = open_checked(options, progress)
    settle(options)
    return pair.info, Guarded(Session(pair), stamps)


def _stamps(options: PairOptions) -> list[Stamp]:
    """Of the files with weights; what is wrong with them is for opening to say."""
    stamps = []
    if options.backend != "scripted":
        for file in sorted(Path(os.path.expanduser(options.bundle)).glob("*/*.safetensors")):
            with suppress(OSError):
                stamps.append(Stamp.of(file))
    return stamps


def leave() -> NoReturn:
    """End the process now, from any thread."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class Sender:
    """Events to the parent, in tuples. Ends the process when nobody listens any more.

    Rounds of a few milliseconds go together: each sending costs both processes time that the next round needs. A
    round waits for the next one at most, and only while the last sending is less than GATHER_SECONDS ago.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._waiting: list[Event] = []
        self._sent = time.monotonic()

    def __call__(self, event: Event) -> None:
        self._waiting.append(event)
        now = time.monotonic()
        if isinstance(event, Round) and now - self._sent < GATHER_SECONDS:
            return
        together, self._waiting, self._sent = tuple(self._waiting), [], now
        try:
            self._pipe.send_bytes(pickle.dumps(together, pickle.HIGHEST_PROTOCOL))
        except OSError:
            leave()


class Inbox:
    """Commands as they arrive.

    Args:
        pipe: Where they come from; a thread reads it from now on.
        on_end: Called on that thread at Close and at the end of the pipe.
    """

    def __init__(self, pipe: Connection, on_end: Callable[[], object]) -> None:
        self._pipe = pipe
        self._on_end = on_end
        self._queue: queue.SimpleQueue[Say | Adjust | Cancel] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="commands", daemon=True).start()

    def take(self) -> Say | Adjust | Cancel:
        """The next command; waits for it."""
        return self._queue.get()

    def waiting(self) -> Iterator[Say | Adjust | Cancel]:
        """The commands that are there; does not wait."""
        while not self._queue.empty():
            yield self._queue.get()

    def _read(self) -> None:
        try:
            while not isinstance(command := self._pipe.recv(), Close):
                self._queue.put(command)
        except (EOFError, OSError):
            pass
        self._on_end()


class Server:
    """Opens a session and answers commands until something fails that a session cannot survive."""

    def __init__(
        self,
        inbox: Inbox,
        send: Callable[[Event], None],
        log_path: str,
        report: Callable[[Exception], Path | None] = lambda error: None,
    ) -> None:
        self._report = report  # writes one that can be shared
        self._inbox = inbox
        self._send = send
        self._log_path = log_path
        self._later: deque[Say] = deque()  # messages that came while a reply ran

    def run(self, options: PairOptions, opener: Opener) -> None:
        """Serve. Returns after a fatal failure, which has been sent."""
        try:
            info, session = opener(options, self._progress())
            self._send(Ready(info))
            while True:
                command = self._later.popleft() if self._later else self._inbox.take()
                if isinstance(command, Say):
                    self._reply(session, command)
                elif isinstance(command, Adjust):
                    adjust(session, command.controls)
        except Eagle3Error as error:  # of opening: a reply's own are dealt with there
            log.warning("%s", error)
            self._send(Failed(error.message, error.fix, fatal=True))
        except Exception as error:
            log.exception("unexpected")
            first_line = (str(error).strip().splitlines() or [""])[0]
            what = f"The decode worker failed: {type(error).__name__}: {first_line}".rstrip(": ")
            report = self._report(error)
            shared = f" A report that you can read before sharing it: {report}" if report else ""
            fix = f"Restart it; the traceback is in {self._log_path}.{shared}"
            self._send(Failed(what, f"{_memory_advice(error)}{fix}", fatal=True))

    def _reply(self, session: Decoder, say: Say) -> None:
        try:
            for event in session.reply(say):
                self._send(event)
                self._obey(session)
        except Eagle3Error as error:
            log.warning("%s", error)
            self._send(Failed(error.message, error.fix))

    def _obey(self, session: Decoder) -> None:
        """Take up what arrived while a reply runs."""
        for command in self._inbox.waiting():
            if isinstance(command, Say):
                self._later.append(command)
            elif isinstance(command, Adjust):
                adjust(session, command.controls)
            else:
                session.cancel()

    def _progress(self) -> Progress:
        last_stage, last_time = "", 0.0

        def progress(stage: str, fraction: float | None) -> None:
            nonlocal last_stage, last_time
            now = time.monotonic()
            if stage != last_stage or now - last_time >= LOADING_SECONDS:
                last_stage, last_time = stage, now
                self._send(Loading(stage, fraction))

        return progress


def _memory_advice(error: Exception) -> str:
    """What helps where there was too little memory, with a space behind; empty where something else is wrong."""
    words = str(error).lower()
    few = isinstance(error, MemoryError) or "out of memory" in words or "allocate memory" in words
    return "A smaller --context, --dtype int4 or a smaller model takes less memory. " if few else ""


def adjust(session: Decoder, controls: Controls) -> None:
    """Set the controls; what the pair cannot do is left as it was, and the rounds say what is in force."""
    try:
        session.controls = controls
    except SettingError as error:
        log.warning("%s", error)
