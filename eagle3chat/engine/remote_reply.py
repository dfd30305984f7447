"""A reply as it arrives from a server: its chunks become rounds that are bursts, and its end what is known of it.

Thinking that comes apart from the answer is put between <think> and </think>, as models write it themselves. Times
are of this machine's clock unless the server tells its own. Knows no HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from eagle3chat.engine.events import Burst, Finished, FinishReason, Round, Told, Usage
from eagle3chat.engine.remote_chunk import Chunk
from eagle3chat.engine.remote_speculation import NOTHING, joined

LATE_ROUNDS = 2  # of a server that is told to stop
OPEN, CLOSE = "<think>\n", "\n</think>\n\n"
_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length", "eos": "stop", "stop_sequence": "stop"}


class RemoteReply:
    """One reply.

    Args:
        temperature: It was asked for with.
        clock: Seconds.
    """

    def __init__(self, temperature: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self.told = NOTHING
        self.finish = ""  # the server's word for why it ended; empty: it has not
        self.notes: tuple[str, ...] = ()
        self._stop = ""
        self._temperature = temperature
        self._clock = clock
        self._asked = clock()
        self._first: float | None = None  # when text came
        self._last = 0.0
        self._rounds = 0
        self._thinks = False
        self._counted: int | None = 0  # tokens of the bursts so far; None: they cannot be counted
        self._waiting = 0  # tokens without text yet
        self._first_tokens: int | None = None

    def ask(self) -> None:
        """The request goes out now."""
        self._asked = self._clock()

    @property
    def begun(self) -> bool:
        """Text came."""
        return self._first is not None

    def take(self, chunk: Chunk) -> Round | None:
        """The next chunk; a round when it holds text."""
        self.told = joined(self.told, chunk.told)
        self.finish = chunk.finish or self.finish
        self._stop = chunk.stop or self._stop
        text = self._text(chunk)
        tokens = self._tokens(chunk)
        if not text:
            return None
        now = self._clock()
        seconds = 0.0 if self._first is None else now - self._last
        if self._first is None:
            self._first, self._first_tokens = now, tokens
        self._last = now
        prompt, before = self.told.prompt_tokens, self._counted
        if before is not None:
            self._counted = None if tokens is None else before + tokens
        self._rounds += 1
        return Round(
            index=self._rounds - 1,
            position=prompt + before if prompt is not None and before is not None and tokens is not None else 0,
            chain=0,
            temperature=self._temperature,
            drafted=(),
            accepted=0,
            own=None,
            own_kind=None,
            considered=(),
            text=text,
            seconds=seconds,
            burst=Burst(tokens),
        )

    def _text(self, chunk: Chunk) -> str:
        text = ""
        if chunk.thought:
            text = chunk.thought if self._thinks else OPEN + chunk.thought
            self._thinks = True
        if chunk.text:
            text += (CLOSE if self._thinks else "") + chunk.text
            self._thinks = False
        return text

    def _tokens(self, chunk: Chunk) -> int | None:
        """Tokens since the last burst: by the server's running count, or by the ids that came."""
        held = bool(chunk.text or chunk.thought)
        total = chunk.told.generated_tokens
        if total is not None and self._counted is not None:
            return max(0, total - self._counted)
        if chunk.tokens is None:
            return None
        self._waiting += chunk.tokens
        tokens = self._waiting
        if held:
            self._waiting = 0
        return tokens

    def finished(self, reason: FinishReason | None = None, counters: Told = NOTHING) -> Finished:
        """The end.

        Args:
            reason: None: the server's.
            counters: What its counters say; the reply's own figures come first.
        """
        told = _together(self.told, counters, stopped=reason == "cancelled")
        if told.tau is None and told.rounds and told.accepted is not None:
            told = replace(told, tau=1.0 + told.accepted / told.rounds)
        if told.generated_tokens is None and self._counted:
            told = replace(told, generated_tokens=self._counted)
        notes = self.notes
        if reason is None and self.finish and self.finish not in _REASONS:
            notes = (*notes, f"The server ended the reply for a reason of its own: {self.finish}.")
        if reason is None and not self.begun:
            notes = (*notes, "The server sent no text.")
        ended = reason or _REASONS.get(self.finish, "stop")
        return Finished(ended, self._stop if ended == "stop" else "", "", self._usage(told), notes)

    def _usage(self, told: Told) -> Usage:
        first = self._first if self._first is not None else self._clock()
        return Usage(
            prompt_tokens=told.prompt_tokens or 0,
            reused_tokens=told.reused_tokens or 0,
            generated_tokens=told.generated_tokens or 0,
            rounds=told.rounds or 0,
            accepted=told.accepted or 0,
            rejected=0,
            unreached=0,
            reached_at=(),
            accepted_at=(),
            drafted_at=(),
            prefill_seconds=first - self._asked,
            decode_seconds=told.decode_seconds or self._decode_seconds(told),
            first_token_seconds=first - self._asked,
            told=told,
        )

    def _decode_seconds(self, told: Told) -> float:
        """From the first text to the last, for all tokens: those of the first text came before the clock started."""
        if self._first is None:
            return 0.0
        seconds = self._last - self._first
        count, early = told.generated_tokens, self._first_tokens or 1
        return seconds * count / (count - early) if count is not None and count > early else seconds


def _together(own: Told, counters: Told, *, stopped: bool) -> Told:
    """What the reply told and what the counters say. Where both count drafts and agree, nobody else was served.

    Args:
        stopped: The server may have done a round or two that did not arrive.
    """
    told = joined(counters, own)
    if not (own.source and counters.source):
        return told
    told = replace(told, source=f"{own.source} and {counters.source}", shared=counters.shared)
    if counters.rounds is None:
        return told
    # Rounds of the counters beside drafts of the reply would be no figure.
    told = replace(told, drafted=counters.drafted, accepted=counters.accepted)
    if _agree(own, counters, stopped=stopped):
        return replace(told, shared=False)
    return replace(told, source=counters.source)


def _agree(own: Told, counters: Told, *, stopped: bool) -> bool:
    pairs = ((own.drafted, counters.drafted), (own.accepted, counters.accepted))
    late = LATE_ROUNDS * -(-(counters.drafted or 0) // (counters.rounds or 1)) if stopped else 0
    return all(a is not None and b is not None and 0 <= b - a <= late for a, b in pairs)
