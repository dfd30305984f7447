"""The counts and times of one reply while it runs. Knows steps and a clock; not what they are shown as."""

from __future__ import annotations

import time

from eagle3chat.engine.events import Usage
from eagle3chat.engine.speculate import Step


class Tally:
    """Adds up steps into a `Usage`.

    Args:
        prompt_tokens: Of the whole prompt.
        reused_tokens: Of them, rows kept from the turn before.
        started: time.perf_counter() at the request.
    """

    def __init__(self, prompt_tokens: int, reused_tokens: int, started: float) -> None:
        self._prompt_tokens = prompt_tokens
        self._reused_tokens = reused_tokens
        self._started = started
        self._prefilled = started
        self._prefill_started = time.perf_counter()
        self._decode_seconds = 0.0
        self._first_token = 0.0
        self._generated = self._rounds = 0
        self._accepted = self._rejected = self._unreached = 0
        self._drafted_at: list[int] = []
        self._reached_at: list[int] = []
        self._accepted_at: list[int] = []

    def reused(self, tokens: int) -> None:
        """So many of the prompt's rows were kept after all."""
        self._reused_tokens = tokens

    def prefilled(self) -> None:
        """The prompt is cached."""
        self._prefilled = time.perf_counter()

    def add(self, step: Step) -> None:
        """Count a committed round. Drafts behind a stop or a limit count as unreached."""
        drafted = len(step.verdict.drafted)
        tested = step.accepted + (step.own and step.accepted < drafted)
        self._rounds += 1
        self._generated += len(step.tokens)
        self._accepted += step.accepted
        self._rejected += tested - step.accepted
        self._unreached += drafted - tested
        if drafted:
            self._count_places(drafted, tested, step.accepted)
        now = time.perf_counter()
        self._decode_seconds = now - self._prefilled  # wall time: what comes between rounds counts
        if self._rounds == 1:
            self._first_token = now - self._started

    def _count_places(self, drafted: int, tested: int, accepted: int) -> None:
        for places, count in ((self._drafted_at, drafted), (self._reached_at, tested), (self._accepted_at, accepted)):
            places.extend([0] * (drafted - len(places)))
            for place in range(count):
                places[place] += 1

    def usage(self) -> Usage:
        """The sums so far."""
        return Usage(
            prompt_tokens=self._prompt_tokens,
            reused_tokens=self._reused_tokens,
            generated_tokens=self._generated,
            rounds=self._rounds,
            accepted=self._accepted,
            rejected=self._rejected,
            unreached=self._unreached,
            reached_at=tuple(self._reached_at),
            accepted_at=tuple(self._accepted_at),
            drafted_at=tuple(self._drafted_at),
            prefill_seconds=max(0.0, self._prefilled - self._prefill_started),
            decode_seconds=self._decode_seconds,
            first_token_seconds=self._first_token,
        )
