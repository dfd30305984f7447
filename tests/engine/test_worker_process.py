"""The child's side of the decode worker, in this process, with a session that does as it is told."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import Pipe

import pytest

from eagle3chat.engine.errors import BundleError, PromptError, SettingError
from eagle3chat.engine.events import Event, Failed, Finished, Info, Loading, Prefill, Ready, Usage
from eagle3chat.engine.requests import Adjust, Cancel, Close, Controls, Message, PairOptions, Say
from eagle3chat.engine.worker_process import Inbox, Opener, Progress, Server

INFO = Info("m", "d", "f", "scripted", "none", "none", "chatml", 64, 4, 3, "", (), 0.0, 0)
USAGE = Usage(1, 0, 0, 0, 0, 0, 0, (), (), (), 0.0, 0.0, 0.0)
SAY = Say((Message("user", "hi"),), Controls())


class Session:
    """Yields a Prefill a step, and runs what the test put in `between` before each."""

    def __init__(self, steps: int = 3, between: Callable[[int], None] = lambda step: None) -> None:
        self.steps = steps
        self.between = between
        self.seen: list[int] = []  # the chain at each step
        self.cancelled = False
        self._controls = Controls()

    @property
    def controls(self) -> Controls:
        return self._controls

    @controls.setter
    def controls(self, controls: Controls) -> None:
        if controls.chain > 8:
            raise SettingError("Too long.", "Use 8.")
        self._controls = controls

    def cancel(self) -> None:
        self.cancelled = True

    def reply(self, say: Say) -> Iterator[Prefill | Finished]:
        self.cancelled = False
        self.controls = say.controls
        for step in range(self.steps):
            self.between(step)
            self.seen.append(self.controls.chain)
            yield Prefill(step, self.steps, 0)
            if self.cancelled:
                yield Finished("cancelled", "", "", USAGE)
                return
        yield Finished("length", "", "", USAGE)


class Bench:
    """A server on a thread, the other end of its pipe, and what it sent."""

    def __init__(self, opener: Opener) -> None:
        self.ours, theirs = Pipe()
        self.ended = threading.Event()
        self.events: list[Event] = []
        inbox = Inbox(theirs, self.ended.set)
        server = Server(inbox, self.events.append, "/logs/worker.log")
        self.thread = threading.Thread(target=server.run, args=(PairOptions(), opener), daemon=True)
        self.thread.start()

    def wait(self, count: int, kind: type = Finished) -> list[Event]:
        deadline = time.monotonic() + 5
        while sum(isinstance(e, kind) for e in self.events) < count:
            assert time.monotonic() < deadline, self.events
            time.sleep(0.001)
        return self.events


def opens(session: Session) -> Opener:
    return lambda options, progress: (INFO, session)


def arrives(bench: Callable[[], Bench], *commands: object) -> None:
    """Send commands and let the inbox have them."""
    for command in commands:
        bench().ours.send(command)
    time.sleep(0.02)


def test_a_reply_is_sent_event_by_event() -> None:
    bench = Bench(opens(Session()))
    bench.ours.send(SAY)
    ready, *events = bench.wait(1)
    assert ready == Ready(INFO)
    assert events == [*(Prefill(i, 3, 0) for i in range(3)), Finished("length", "", "", USAGE)]


def test_commands_are_taken_up_between_two_events() -> None:
    session = Session(4, lambda step: arrives(lambda: bench, Adjust(Controls(step))))
    bench = Bench(opens(session))
    bench.ours.send(SAY)
    bench.wait(1)
    assert session.seen == [3, 0, 1, 2]


def test_cancel_ends_the_running_reply_and_not_the_next() -> None:
    session = Session(4, lambda step: arrives(lambda: bench, Cancel()) if step == 1 else None)
    bench = Bench(opens(session))
    bench.ours.send(Cancel())
    bench.ours.send(SAY)
    assert len([e for e in bench.wait(1) if isinstance(e, Prefill)]) == 2
    session.between = lambda step: None
    bench.ours.send(Cancel())
    bench.ours.send(SAY)
    assert [e.reason for e in bench.wait(2) if isinstance(e, Finished)] == ["cancelled", "length"]


def test_a_message_that_comes_while_a_reply_runs_waits_for_its_turn() -> None:
    second = Say((), Controls(1))
    session = Session(3, lambda step: arrives(lambda: bench, second) if len(session.seen) == 1 else None)
    bench = Bench(opens(session))
    bench.ours.send(SAY)
    bench.wait(2)
    assert session.seen == [3, 3, 3, 1, 1, 1]


def test_controls_that_the_pair_cannot_do_change_nothing_and_end_nothing() -> None:
    session = Session(3, lambda step: arrives(lambda: bench, Adjust(Controls(9))))
    bench = Bench(opens(session))
    bench.ours.send(Adjust(Controls(9)))
    bench.ours.send(SAY)
    assert not [e for e in bench.wait(1) if isinstance(e, Failed)]
    assert session.seen == [3, 3, 3]


def test_an_error_of_a_reply_is_told_and_the_worker_goes_on() -> None:
    def refuse(step: int) -> None:
        raise PromptError("The prompt is empty.", "Write one.")

    session = Session(3, refuse)
    bench = Bench(opens(session))
    bench.ours.send(SAY)
    assert bench.wait(1, Failed)[1:] == [Failed("The prompt is empty.", "Write one.")]
    session.between = lambda step: None
    bench.ours.send(SAY)
    bench.wait(1)


def test_an_error_of_opening_is_fatal() -> None:
    def opener(options: PairOptions, progress: Progress) -> tuple[Info, Session]:
        raise BundleError("/models/x", "is missing", "Export it.")

    bench = Bench(opener)
    bench.thread.join(5)
    assert bench.events == [Failed("/models/x: is missing.", "Export it.", fatal=True)]


def test_an_unexpected_error_is_one_line_and_fatal_and_its_traceback_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def explode(step: int) -> None:
        raise RuntimeError("CUDA out of memory.\nsecond line")

    bench = Bench(opens(Session(3, explode)))
    bench.ours.send(SAY)
    bench.thread.join(5)
    message = "The decode worker failed: RuntimeError: CUDA out of memory."
    less = "A smaller --context, --dtype int4 or a smaller model takes less memory."
    fix = f"{less} Restart it; the traceback is in /logs/worker.log."
    assert bench.events[1:] == [Failed(message, fix, fatal=True)]
    assert "second line" in caplog.text
    assert "Traceback" in caplog.text


def test_loading_is_sent_at_each_stage_and_not_too_often() -> None:
    def opener(options: PairOptions, progress: Progress) -> tuple[Info, Session]:
        for i in range(1000):
            progress("target", i / 1000)
        progress("draft", None)
        return INFO, Session()

    bench = Bench(opener)
    bench.wait(1, Ready)
    loading = [e for e in bench.events if isinstance(e, Loading)]
    assert loading[0] == Loading("target", 0.0)
    assert loading[-1] == Loading("draft", None)
    assert len(loading) < 20


@pytest.mark.parametrize("end", ["close", "parent gone"])
def test_the_end_comes_at_once_also_in_mid_step(end: str) -> None:
    stuck = threading.Event()
    bench = Bench(opens(Session(1, lambda step: stuck.wait(5))))
    bench.ours.send(SAY)
    bench.wait(1, Ready)
    if end == "close":
        bench.ours.send(Close())
    else:
        bench.ours.close()
    assert bench.ended.wait(2)
    stuck.set()


def test_the_child_imports_no_screen_and_no_tensor_library() -> None:
    code = (
        "import sys; from eagle3chat.engine.worker_process import open_session\n"
        "from eagle3chat.engine.requests import PairOptions\n"
        "open_session(PairOptions(backend='scripted'), lambda stage, fraction: None)\n"
        "print([m for m in ('textual', 'rich', 'torch', 'mlx', 'eagle3chat.cli') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
