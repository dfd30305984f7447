"""Decoding one reply in this process, for the headless commands: events in order, and what they add up to.

Knows sessions and the clock; not what becomes of the text.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from eagle3chat.engine.events import Finished, Info, Prefill, Round
from eagle3chat.engine.requests import Say
from eagle3chat.report import Clock, Reply, RoundTimes

BEGAN_NS = time.time_ns() - time.perf_counter_ns()
Watch = Callable[[Prefill | Round | Finished], None]


class Decoder(Protocol):
    """What decodes replies: a session on a pair, or a server."""

    def reply(self, say: Say) -> Iterator[Prefill | Round | Finished]: ...


def now_ms() -> int:
    """Unix time in milliseconds, as it was when this module was read and counted on from there: a clock that is set
    meanwhile makes no rate absurd."""
    return (BEGAN_NS + time.perf_counter_ns()) // 1_000_000


def decode(info: Info, session: Decoder, say: Say, watch: Watch, loaded: tuple[int, int]) -> Reply:
    """Decode a reply to its end.

    Args:
        info: Of what decodes.
        session: Idle.
        say: The request.
        watch: Called with every event, in order, while the reply runs.
        loaded: When the loading of the pair began and ended, Unix milliseconds.

    Raises:
        PromptError: The prompt is empty or does not fit the context.
        SettingError: A control is out of range.
        ServerError: A server breaks off.
    """
    start = now_ms()
    prompt_end = first_token = None
    rounds: list[Round] = []
    finished: Finished | None = None
    for event in session.reply(say):
        if isinstance(event, Prefill):
            prompt_end = now_ms() if event.done == event.total else None
        elif isinstance(event, Round):
            first_token = first_token or now_ms()
            rounds.append(event)
        else:
            finished = event
        watch(event)
    assert finished is not None, "a reply ends with Finished"
    return Reply(
        text="".join(r.text for r in rounds) + finished.text,
        token_ids=tuple(token.id for r in rounds for token in r.tokens),
        reason=finished.reason,
        stop=finished.stop,
        usage=finished.usage,
        controls=say.controls,
        info=info,
        clock=Clock(*loaded, start, prompt_end, first_token, now_ms()),
        times=RoundTimes.of(rounds),
    )


@contextmanager
def interrupts(cancel: Callable[[], None]) -> Iterator[None]:
    """Within this block the first Ctrl+C calls `cancel`, a second one raises KeyboardInterrupt."""
    cancelled = False

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal cancelled
        if cancelled:
            raise KeyboardInterrupt
        cancelled = True
        cancel()

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
