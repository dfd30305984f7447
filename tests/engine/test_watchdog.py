"""A worker that hangs: when it is said to, and what becomes of one that does."""

from __future__ import annotations

import os
import queue
import signal
import time
from pathlib import Path

import pytest

from eagle3chat.engine.bundle_stamp import Guarded, Stamp
from eagle3chat.engine.errors import BundleError
from eagle3chat.engine.events import Event, Failed, Finished, Info, Prefill, Ready, Round, Usage
from eagle3chat.engine.requests import Adjust, Cancel, Controls, Message, PairOptions, Say
from eagle3chat.engine.watchdog import SWITCH, Watchdog
from eagle3chat.engine.worker import DecodeWorker

INFO = Info("m", "d", "f", "scripted", "none", "none", "chatml", 64, 4, 3, "", (), 0.0, 0)
USAGE = Usage(1, 0, 0, 0, 0, 0, 0, (), (), (), 0.0, 0.0, 0.0)
END = Finished("length", "", "", USAGE)
SAY = Say((Message("user", "hi"),), Controls(3))


def test_a_worker_that_owes_nothing_may_be_silent() -> None:
    dog = Watchdog(10, 2)
    dog.heard(Ready(INFO))
    for command in (Cancel(), Adjust(Controls())):
        dog.asked(command)
        assert not dog.waited(1000)
    dog.asked(SAY)
    assert not dog.waited(9)
    dog.heard(END)
    assert not dog.waited(1000)


def test_silence_counts_from_the_last_event_and_is_short_after_a_stop() -> None:
    dog = Watchdog(10, 2)
    assert not dog.waited(9.5)
    assert dog.waited(0.5), "it never gets ready"
    dog = Watchdog(10, 2)
    dog.heard(Ready(INFO))
    dog.asked(SAY)
    dog.waited(9)
    dog.heard(Prefill(1, 2, 0))
    assert not dog.waited(9)
    dog.asked(Cancel())
    assert not dog.waited(1.5)
    dog.asked(Cancel())  # a second one gives no more time
    assert dog.waited(0.5)
    assert dog.limit == 2


def test_the_next_reply_has_its_whole_time() -> None:
    dog = Watchdog(10, 2)
    dog.heard(Ready(INFO))
    dog.asked(SAY)
    dog.asked(SAY)
    dog.asked(Cancel())
    dog.waited(1.9)
    dog.heard(END)
    assert not dog.waited(9)
    assert dog.waited(1)


@pytest.mark.parametrize(
    ("value", "limit"), [("2.5", 2.5), ("0", float("inf")), ("soon", 600.0), ("nan", 600.0), ("-1", 600.0)]
)
def test_the_environment_sets_the_limit(value: str, limit: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, value)
    assert Watchdog.of_environment().limit == limit


@pytest.mark.parametrize("how", ["stopped", "busy"])
def test_a_child_that_hangs_is_ended_and_a_restart_works(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "1")
    events: queue.Queue[Event] = queue.Queue()
    seconds = 30.0 if how == "busy" else 0.01
    log = tmp_path / "worker.log"
    worker = DecodeWorker(PairOptions(backend="scripted", script_seconds=seconds), events.put, log_path=log)
    monkeypatch.setattr("eagle3chat.engine.worker.TICK_SECONDS", 0.1)
    worker.start()
    while not isinstance(events.get(timeout=10), Ready):
        pass
    pid = worker.pid
    assert pid is not None
    if how == "stopped":
        os.kill(pid, signal.SIGSTOP)
    start = time.monotonic()
    worker.say(SAY)
    while not isinstance(event := events.get(timeout=10), Failed):
        assert isinstance(event, Prefill | Round)
    assert time.monotonic() - start < 6
    assert event == Failed(
        "The decode worker did not answer for 1 s and was ended.",
        f"Restart it; the chat is kept. Its log is {log}.",
        fatal=True,
    )
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    if how == "busy":
        assert "scripted.py" in log.read_text(), "the log says where it stood"
    worker.restart()
    while not isinstance(events.get(timeout=10), Ready):
        pass
    worker.close()


class _Session:
    controls = Controls(1)

    def cancel(self) -> None:
        raise AssertionError("not asked for")

    def reply(self, say: Say):  # type: ignore[no-untyped-def]
        yield END


def test_weights_that_were_changed_in_place_are_not_decoded_with(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"x" * 64)
    session = Guarded(_Session(), [Stamp.of(file)])
    assert list(session.reply(SAY)) == [END]
    other = tmp_path / "new"
    other.write_bytes(b"y" * 64)
    with file.open("r+b") as opened:
        opened.truncate(10)
        with pytest.raises(BundleError, match=r"model\.safetensors: was changed while the model is open"):
            list(session.reply(SAY))
    other.replace(file)  # what was opened is still there
    assert list(session.reply(SAY)) == [END]
    file.unlink()
    assert list(session.reply(SAY)) == [END]
