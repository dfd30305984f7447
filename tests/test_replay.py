"""A transcript says again what it holds, in the time that it took."""

from __future__ import annotations

import queue
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from eagle3chat.cli import main
from eagle3chat.engine.errors import SettingError
from eagle3chat.engine.events import Event, Failed, Finished, Prefill, Ready, Round
from eagle3chat.engine.requests import Controls, Message, PairOptions, Say
from eagle3chat.replay import Clockwork, ReplayWorker, info_of, recorded, timed
from eagle3chat.transcript import Transcript, load
from eagle3chat.transcript_codec import Conversation

sys.path.insert(0, str(Path(__file__).parent / "ui"))

from fake_worker import INFO, finished, rounds_of, tokens_of

FIRST = rounds_of(tokens_of("one two three four five six"))
SECOND = rounds_of(tokens_of("seven eight nine"), chain=5)


def conversation(directory: Path, *, ends: bool = True) -> Conversation:
    transcript = Transcript.create(directory)
    transcript.opened(INFO, Controls(3))
    for said, rounds in (("a", FIRST), ("b", SECOND)):
        transcript.user(said)
        for round_ in rounds:
            transcript.round(round_)
        if ends or said == "a":
            transcript.reply(finished(rounds))
    transcript.user("never answered")
    transcript.close()
    return load(transcript.path)


class Played:
    """A worker on a recording, and what came of it."""

    def __init__(self, past: Conversation, speed: float = 1000.0) -> None:
        self.events: queue.Queue[Event] = queue.Queue()
        self.clockwork = Clockwork(speed)
        self.worker = ReplayWorker(past, self.clockwork, PairOptions(), self.events.put)
        self.worker.start()

    def next(self) -> Event:
        return self.events.get(timeout=10)

    def say(self, text: str) -> list[Event]:
        self.worker.say(Say((Message("user", text),), Controls()))
        events = [self.next()]
        while not isinstance(events[-1], Finished | Failed):
            events.append(self.next())
        return events


def test_the_events_are_those_of_the_worker(tmp_path: Path) -> None:
    played = Played(conversation(tmp_path))
    ready = played.next()
    assert isinstance(ready, Ready)
    assert ready.info.model == INFO.model and ready.info.max_chain == 5
    assert played.say("a") == [Prefill(40, 40, 0), *FIRST, finished(FIRST)]
    assert played.say("b") == [Prefill(40, 40, 0), *SECOND, finished(SECOND)]
    (nothing,) = played.say("c")
    assert isinstance(nothing, Failed) and not nothing.fatal and "recording" in nothing.message
    played.worker.restart()
    assert played.next() == ready
    assert len(played.say("b")) == len(SECOND) + 2
    (gone,) = played.say("a")
    assert isinstance(gone, Failed)
    played.worker.close()


def test_a_reply_that_broke_off_breaks_off(tmp_path: Path) -> None:
    played = Played(conversation(tmp_path, ends=False))
    played.next()
    played.say("a")
    events = played.say("b")
    assert events[:-1] == SECOND and isinstance(events[-1], Failed)
    played.worker.close()


def test_the_times_are_those_of_the_rounds(tmp_path: Path) -> None:
    reply = recorded(conversation(tmp_path))[0].reply
    assert reply is not None
    slow = replace(reply, rounds=(replace(FIRST[0], seconds=0.5), replace(FIRST[1], seconds=-1.0)))
    assert [seconds for seconds, _ in timed(slow)] == [0.2, 0.5, 0.0, 0.0]


def test_holding_stepping_and_hurrying(tmp_path: Path) -> None:
    played = Played(conversation(tmp_path))
    played.next()
    played.clockwork.stand(True)
    played.worker.say(Say((Message("user", "a"),), Controls()))
    with pytest.raises(queue.Empty):
        played.events.get(timeout=0.05)
    for kind in (Prefill, Round, Round):
        played.clockwork.step()
        assert isinstance(played.next(), kind)
    with pytest.raises(queue.Empty):
        played.events.get(timeout=0.05)
    played.worker.cancel()
    rest = [played.next() for _ in range(len(FIRST) - 2 + 1)]
    assert isinstance(rest[-1], Finished)
    played.worker.close()


def test_after_a_restart_nothing_of_the_reply_before_follows(tmp_path: Path) -> None:
    played = Played(conversation(tmp_path))
    played.next()
    played.clockwork.stand(True)
    played.worker.say(Say((Message("user", "a"),), Controls()))
    before = played.worker._thread
    assert before is not None
    played.worker.restart()
    assert isinstance(played.next(), Ready)
    played.clockwork.stand(False)
    before.join(10)
    assert played.events.empty()
    assert played.say("b") == [Prefill(40, 40, 0), *SECOND, finished(SECOND)]
    played.worker.close()


def test_closing_ends_a_slow_reply(tmp_path: Path) -> None:
    played = Played(conversation(tmp_path), speed=0.001)
    played.next()
    played.worker.say(Say((Message("user", "a"),), Controls()))
    played.worker.close()
    assert played.events.empty()
    assert played.worker._thread is not None and not played.worker._thread.is_alive()


@pytest.mark.parametrize("speed", [0, -1, 1e9, float("nan")])
def test_speeds_that_cannot_be(speed: float) -> None:
    with pytest.raises(SettingError, match="times as fast"):
        Clockwork(speed)


def test_of_a_conversation_without_drafts(tmp_path: Path) -> None:
    transcript = Transcript.create(tmp_path)
    transcript.user("a")
    plain = rounds_of(["x"], chain=0)
    transcript.round(plain[0])
    transcript.settings(Controls(0))
    transcript.reply(finished(plain))
    transcript.close()
    info = info_of(load(transcript.path))
    assert info.max_chain == 0 and "nothing was drafted" in info.unavailable


def test_the_command_refuses_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    path = conversation(tmp_path)
    file = str(tmp_path / f"{path.header.id}.jsonl")
    assert main(["replay", file]) == 2
    assert "needs a terminal" in capsys.readouterr().err
    assert main(["replay", file, "--speed", "0"]) == 2
    assert "times as fast" in capsys.readouterr().err
    empty = Transcript.create(tmp_path)
    empty.user("a")
    empty.close()
    assert main(["replay", str(empty.path)]) == 2
    assert "no reply" in capsys.readouterr().err
