"""A worker that decodes nothing: it says again what a transcript holds, in the time that it took.

It has the handle of `engine.worker.DecodeWorker` and sends the same events, so the screen cannot tell it from a
model. A message that was not said in the conversation gets no answer. Knows no screen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from eagle3chat.engine.errors import SettingError
from eagle3chat.engine.events import Event, Failed, Finished, Info, Prefill, Ready, Round
from eagle3chat.engine.requests import Controls, PairOptions, Say
from eagle3chat.transcript_codec import Conversation, Reply
from eagle3chat.transcript_line import Exchange, exchanges

FASTEST = 1000.0
ENDS = 1e9  # seconds: to wait for a key


class Clockwork:
    """The time of a replay: how fast it runs, whether it stands. Set on one thread, waited for on another.

    Args:
        speed: Times as fast as it was.

    Raises:
        SettingError: The speed is not above 0, or above FASTEST.
    """

    def __init__(self, speed: float = 1.0) -> None:
        self._changed = threading.Condition()
        self._steps = 0  # events that may pass while it stands
        self._hurries = False
        self._closed = False
        self.stands = False
        self.speed = checked_speed(speed)

    def wait(self, seconds: float) -> bool:
        """Wait as long as something took; False: the replay is over."""
        with self._changed:
            if not self.stands and not self._hurries and not self._closed:
                self._changed.wait_for(lambda: self._hurries or self._closed or self.stands, seconds / self.speed)
            self._changed.wait_for(lambda: not self.stands or self._steps or self._hurries or self._closed, ENDS)
            self._steps = max(0, self._steps - 1)
            return not self._closed

    def set_speed(self, speed: float) -> None:
        """From the next event on."""
        self.speed = checked_speed(speed)

    def stand(self, on: bool) -> None:
        """Hold, or go on."""
        with self._changed:
            self.stands, self._steps = on, 0
            self._changed.notify_all()

    def step(self) -> None:
        """One event, while it stands."""
        with self._changed:
            self._steps += 1
            self._changed.notify_all()

    def hurry(self, on: bool) -> None:
        """Whether nothing waits."""
        with self._changed:
            self._hurries = on
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing is to be waited for any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def checked_speed(speed: float) -> float:
    """A speed that a replay can have.

    Raises:
        SettingError: It cannot.
    """
    if not 0 < speed <= FASTEST:
        raise SettingError(f"A replay cannot run {speed:g} times as fast.", f"Use more than 0, up to {FASTEST:g}.")
    return speed


class ReplayWorker:
    """The handle.

    Args:
        conversation: What was said.
        clockwork: The time of the replay.
        options: Ignored; the pair is the transcript's.
        on_event: Called on a thread of its own with each event.
    """

    def __init__(
        self,
        conversation: Conversation,
        clockwork: Clockwork,
        options: PairOptions,
        on_event: Callable[[Event], None],
    ) -> None:
        self._conversation = conversation
        self._clockwork = clockwork
        self._on_event = on_event
        self._ahead: list[Exchange] = []
        self._thread: threading.Thread | None = None
        self._turn = 0  # what plays is of the last one

    def start(self) -> None:
        """Open the recording: Ready follows."""
        self._turn += 1
        self._ahead = recorded(self._conversation)
        self._on_event(Ready(info_of(self._conversation)))

    def say(self, say: Say) -> None:
        """Say again what was answered to a message."""
        said = say.messages[-1].content if say.messages else ""
        place = next((i for i, exchange in enumerate(self._ahead) if exchange.said == said), None)
        if place is None:
            self._on_event(Failed("This is a recording: it answers what was asked then, and nothing else.", ""))
            return
        reply = self._ahead[place].reply
        del self._ahead[: place + 1]
        assert reply is not None
        self._turn += 1
        self._clockwork.hurry(False)
        self._thread = threading.Thread(target=self._play, args=(reply, self._turn), name="replay", daemon=True)
        self._thread.start()

    def adjust(self, controls: Controls) -> None:
        """What was decoded stays as it was."""

    def cancel(self) -> None:
        """The rest of the reply at once."""
        self._clockwork.hurry(True)

    def restart(self) -> None:
        """From the beginning."""
        self.start()

    def close(self, timeout: float = 3.0) -> None:
        """End; no event follows."""
        self._clockwork.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _play(self, reply: Reply, turn: int) -> None:
        for seconds, event in timed(reply):
            if not self._clockwork.wait(seconds) or turn != self._turn:
                return
            self._on_event(event)


def recorded(conversation: Conversation) -> list[Exchange]:
    """The exchanges that can be shown again: those with a reply that has rounds."""
    return [exchange for exchange in exchanges(conversation) if exchange.reply and exchange.reply.rounds]


def timed(reply: Reply) -> Iterator[tuple[float, Event]]:
    """The events of a reply, each with the seconds that it took."""
    usage = reply.finished.usage if reply.finished else None
    if usage is not None and (usage.told is None or usage.told.prompt_tokens is not None):
        seconds = max(0.0, usage.prefill_seconds)
        yield seconds, Prefill(usage.prompt_tokens, usage.prompt_tokens, usage.reused_tokens)
    for round_ in reply.rounds:
        yield max(0.0, round_.seconds), round_
    if reply.finished is not None:
        yield 0.0, _held_back(reply, reply.rounds, reply.finished)
    else:
        yield 0.0, Failed("The recording of this reply ends here.", "")


def _held_back(reply: Reply, rounds: Sequence[Round], finished: Finished) -> Finished:
    """The end of a reply; of one that went on after a stop the text of the whole stands in the rounds."""
    so_far = "".join(round_.text for round_ in rounds)
    if so_far + finished.text != reply.text and reply.text.startswith(so_far):
        return replace(finished, text=reply.text[len(so_far) :])
    return finished


def info_of(conversation: Conversation) -> Info:
    """What is known of the pair that wrote the conversation."""
    pair = conversation.pair
    rounds = [r for exchange in recorded(conversation) if exchange.reply for r in exchange.reply.rounds]
    chain = max((max(r.chain, len(r.drafted)) for r in rounds), default=0)
    used = max((r.position + r.emitted for r in rounds), default=0)
    return Info(
        model=pair.model,
        draft=pair.draft,
        family=pair.family,
        backend=pair.backend,
        device=pair.device,
        dtype=pair.dtype,
        template=pair.template,
        capacity=max(1, used),
        fixed_chain="A server decoded it" if rounds and all(r.burst for r in rounds) else "",
        unknown=() if used else ("capacity",),
        max_chain=max(chain, conversation.controls.chain),
        default_chain=chain,
        unavailable="" if chain or conversation.controls.chain else "nothing was drafted in this recording",
        stops=(),
        load_seconds=0.0,
        memory_bytes=0,
    )
