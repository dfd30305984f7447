"""The chat without a screen: lines that are only ever added, nothing that a terminal would obey."""

import io
from collections.abc import Iterator

import pytest
from driving import CONTROLS
from fake_worker import FakeWorker, finished, rounds_of, stop_round, tokens_of

from eagle3chat.engine.events import Failed, Loading
from eagle3chat.engine.requests import PairOptions
from eagle3chat.transcript import Transcript, load
from eagle3chat.transcript_line import exchanges
from eagle3chat.ui.chat import Chat
from eagle3chat.ui.plain import PlainChat
from eagle3chat.ui.record import Record


class Teller(FakeWorker):
    """Answers each request with the next of its texts; an empty one kills it, "stop" is cut."""

    texts: Iterator[str]

    def say(self, say):
        super().say(say)
        text = next(self.texts)
        if not text:
            self.emit(Failed("The worker died.", "Look at its log.", fatal=True))
            return
        rounds = rounds_of(tokens_of(text.removesuffix("<cut>")))
        reason = "cancelled" if text.endswith("<cut>") else "stop"
        for round_ in [*rounds, *([stop_round(rounds)] if reason == "stop" else [])]:
            self.emit(round_)
        self.emit(finished(rounds, reason))


def chat(lines, texts=(), transcript=None, past=None, start=None):
    """What was written, and the worker."""
    workers = []

    def factory(options, on_event):
        workers.append(Teller(options, on_event))
        workers[0].texts = iter(texts)
        workers[0].at_start = start or workers[0].at_start
        return workers[0]

    said = iter(lines)

    def read(prompt):
        out.write(prompt)
        try:
            return next(said)
        except StopIteration:
            raise EOFError from None

    out = io.StringIO()
    state = Chat(CONTROLS)
    record = Record(transcript, "", lambda text: None)
    code = PlainChat(state, record, PairOptions(), factory, read, out).run(past)
    record.close()
    return out.getvalue(), workers[0], code


def test_a_chat_of_lines():
    wrote, worker, code = chat(["Hello.", "/temp 0.2", "More?"], ["One **two** \x1b[2Jthree.", "Four."])
    assert code == 0
    assert "model: One **two** ␛[2Jthree.\n" in wrote
    assert "tested drafts accepted" in wrote
    assert wrote.count("you: ") == 4
    assert "\x1b" not in wrote
    assert "\r" not in wrote
    assert [m.content for m in worker.said[1].messages] == ["Hello.", "One **two** \x1b[2Jthree.", "More?"]
    assert worker.said[1].controls.sampling.temperature == 0.2
    assert worker.calls[-1] == "close"


def test_replies_anew_and_going_on_are_in_the_transcript(tmp_path):
    transcript = Transcript.create(tmp_path)
    lines = ["Hello.", "/again", "/continue", "/continue", "/quit", "never read"]
    wrote, worker, _ = chat(lines, ["First.", "Second <cut>", "one."], transcript)
    assert worker.said[2].messages[-1].content == "Second "
    assert "The last reply is complete" in wrote
    found = exchanges(load(transcript.path))
    assert [[r.text for r in e.replies] for e in found] == [["First.", "Second one."]]
    wrote, _, _ = chat([], past=load(transcript.path))
    assert "you: Hello.\nmodel: Second one.\n" in wrote


def test_thinking_is_counted_and_not_read_out():
    wrote, _, _ = chat(["Hello."], ["<think>Hm, well.</think>Yes, it is."])
    assert "model: Yes, it is.\n" in wrote
    assert "thought before: 2 words" in wrote


def test_a_dead_worker_and_wrong_commands_are_lines():
    wrote, worker, code = chat(["Hi", "again", "/race", "/nonsense", "/restart", "Hi"], ["", "Back."])
    for words in ("The worker died.", "/restart starts it again", "needs the screen", "no command", "model: Back."):
        assert words in wrote
    assert (worker.calls[-2:], code) == (["restart", "close"], 0)


def test_a_pair_that_cannot_be_opened_ends_it():
    wrote, _, code = chat(
        ["Hi"], start=[Loading("reading", 0.1), Loading("reading", 0.2), Failed("No bundle.", "Make one.")]
    )
    assert code == 1
    assert wrote == "reading ...\nNo bundle. Make one.\n"


@pytest.mark.parametrize("interrupts", [1, 2])
def test_ctrl_c_stops_a_reply(interrupts, monkeypatch):
    class Slow(Teller):
        def say(self, say):
            FakeWorker.say(self, say)
            self.left = interrupts

        def cancel(self):
            super().cancel()
            rounds = rounds_of(tokens_of("Half"))
            for event in (*rounds, finished(rounds, "cancelled")):
                self.emit(event)

    monkeypatch.setattr(f"{__name__}.Teller", Slow)

    real = PlainChat._reply

    def reply(self, say):
        get, left = self._events.get, [interrupts]

        class Events:
            def get(self):
                if left[0]:
                    left[0] -= 1
                    raise KeyboardInterrupt
                return get()

        self._events = Events()
        real(self, say)

    monkeypatch.setattr(PlainChat, "_reply", reply)
    wrote, worker, _ = chat(["Go"])
    assert worker.calls.count("cancel") == interrupts
    assert "model: Half" in wrote
    assert "stopped by you" in wrote
