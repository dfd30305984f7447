"""The report of one reply: the lines for people on stderr, and the figures as JSON.

Keys and order are those of the ExecuTorch EAGLE-3 runner's report, so that scripts which read one read the
other; ours follow them. tau here is emitted tokens / rounds: no token of ours comes free with the prefill.
Knows events and settings, no stream and no engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NotRequired, TypedDict

from eagle3chat.engine.events import FinishReason, Info, Round, Told, Usage
from eagle3chat.engine.requests import Controls
from eagle3chat.ui.figures import plural, told_parts


@dataclass(frozen=True, slots=True)
class Clock:
    """Unix times in milliseconds of the steps of one reply; None: it did not come to that."""

    load_start: int
    load_end: int
    inference_start: int
    prompt_end: int | None = None  # the prompt is cached
    first_token: int | None = None  # the first round is out
    inference_end: int | None = None


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Sums over rounds, in seconds; draft and verify are None unless every round measured them."""

    rounds: int = 0
    total: float = 0.0
    draft: float | None = None
    verify: float | None = None

    @staticmethod
    def of(rounds: list[Round]) -> RoundTimes:
        """Add up what the rounds of a reply measured."""
        drafts = [r.draft_seconds for r in rounds if r.draft_seconds is not None]
        verifies = [r.verify_seconds for r in rounds if r.verify_seconds is not None]
        return RoundTimes(
            rounds=len(rounds),
            total=sum(r.seconds for r in rounds),
            draft=sum(drafts) if rounds and len(drafts) == len(rounds) else None,
            verify=sum(verifies) if rounds and len(verifies) == len(rounds) else None,
        )


@dataclass(frozen=True, slots=True)
class Reply:
    """A finished reply and everything that its report tells."""

    text: str
    token_ids: tuple[int, ...]
    reason: FinishReason
    stop: str
    usage: Usage
    controls: Controls
    info: Info
    clock: Clock
    times: RoundTimes = field(default_factory=RoundTimes)


class Stats(TypedDict):
    """The figures of one reply. Milliseconds, tokens, and ratios; null: not measured or not defined."""

    prefill_token_per_sec: float | None
    decode_token_per_sec: float | None
    prompt_tokens: int | None
    generated_tokens: int | None
    model_load_start_ms: int
    model_load_end_ms: int
    inference_start_ms: int
    inference_end_ms: int | None
    prompt_eval_end_ms: int | None
    first_token_ms: int | None
    aggregate_sampling_time_ms: int | None
    SCALING_FACTOR_UNITS_PER_SECOND: int
    rounds: int | None
    tau: float | None
    chain: int | None  # with chain_auto: where it began; None: a server's own
    chain_auto: bool
    accepted: int | None
    rejected: int | None
    unreached: int | None
    acceptance_conditional: list[float | None]
    acceptance_unconditional: list[float]
    reused_tokens: int | None
    round_ms: float | None
    draft_ms: float | None
    verify_ms: float | None
    seed: int
    temperature: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    dtype: str
    backend: str
    device: str
    finish_reason: str
    speculation_source: NotRequired[str]  # of a server: where the figures are from; empty: there are none
    speculation_shared: NotRequired[bool]  # of a server: other requests are in them
    drafted: NotRequired[int | None]  # of a server


def stats(reply: Reply) -> Stats:
    """The figures of a reply under the reference's keys, then ours.

    `acceptance_conditional[i]` is accepted / judged at place i (null where no draft was judged),
    `acceptance_unconditional[i]` accepted / rounds. Sampling happens on the device inside a round, so
    `aggregate_sampling_time_ms` is null.
    """
    usage, clock = reply.usage, reply.clock
    if usage.told is not None:
        return _told_stats(replace(reply, usage=replace(usage, told=None)), usage.told)
    places = sum(1 for drafted in usage.drafted_at if drafted)
    reached, accepted = usage.reached_at[:places], usage.accepted_at[:places]
    fresh = usage.prompt_tokens - usage.reused_tokens
    return Stats(
        prefill_token_per_sec=_rate(fresh, usage.prefill_seconds),
        decode_token_per_sec=_rate(usage.generated_tokens, usage.decode_seconds),
        prompt_tokens=usage.prompt_tokens,
        generated_tokens=usage.generated_tokens,
        model_load_start_ms=clock.load_start,
        model_load_end_ms=clock.load_end,
        inference_start_ms=clock.inference_start,
        inference_end_ms=clock.inference_end,
        prompt_eval_end_ms=clock.prompt_end,
        first_token_ms=clock.first_token,
        aggregate_sampling_time_ms=None,
        SCALING_FACTOR_UNITS_PER_SECOND=1000,
        rounds=usage.rounds,
        tau=round(usage.tau, 4),
        chain=reply.controls.chain,
        chain_auto=reply.controls.auto,
        accepted=usage.accepted,
        rejected=usage.rejected,
        unreached=usage.unreached,
        acceptance_conditional=[round(a / r, 4) if r else None for a, r in zip(accepted, reached, strict=True)],
        acceptance_unconditional=[round(a / usage.rounds, 4) if usage.rounds else 0.0 for a in accepted],
        reused_tokens=usage.reused_tokens,
        round_ms=_per_round(reply.times.total, reply.times.rounds),
        draft_ms=_per_round(reply.times.draft, reply.times.rounds),
        verify_ms=_per_round(reply.times.verify, reply.times.rounds),
        seed=reply.controls.sampling.seed,
        temperature=reply.controls.sampling.temperature,
        repetition_penalty=reply.controls.sampling.repetition,
        presence_penalty=reply.controls.sampling.presence,
        frequency_penalty=reply.controls.sampling.frequency,
        dtype=reply.info.dtype,
        backend=reply.info.backend,
        device=reply.info.device,
        finish_reason=reply.reason,
    )


def _told_stats(reply: Reply, told: Told) -> Stats:
    """The figures of a reply that a server decoded: what it did not tell is null."""
    at, rounds = told.accepted_at or (), told.rounds
    shares = told.conditional
    figures = stats(reply)
    return {
        **figures,
        "prefill_token_per_sec": None,  # the wait for the server and the network are in it
        "decode_token_per_sec": None if told.generated_tokens is None else figures["decode_token_per_sec"],
        "prompt_tokens": told.prompt_tokens,
        "generated_tokens": told.generated_tokens,
        "rounds": rounds,
        "tau": None if told.tau is None else round(told.tau, 4),
        "chain": None,
        "chain_auto": False,
        "accepted": told.accepted,
        "rejected": None,
        "unreached": None,
        "acceptance_conditional": [None if share is None else round(share, 4) for share in shares],
        "acceptance_unconditional": [round(a / rounds, 4) for a in at] if rounds else [],
        "reused_tokens": told.reused_tokens,
        "round_ms": None,  # its pieces are no rounds
        "speculation_source": told.source,
        "speculation_shared": told.shared,
        "drafted": told.drafted,
    }


def opening_line(prompt_tokens: int, controls: Controls, budget: int) -> str:
    """What is about to be decoded."""
    chain = "auto" if controls.auto else controls.chain
    return f"Prompt tokens: {prompt_tokens}, chain K={chain}, max_new={budget}"


def closing_lines(reply: Reply) -> list[str]:
    """What was decoded and how fast, for people."""
    usage, times = reply.usage, reply.times
    if usage.told is not None:
        return _told_lines(reply, usage.told)
    lines = []
    if times.draft is not None and times.verify is not None:
        lines.append(
            f"[timing] verify={times.verify * 1e3:.0f}ms draft={times.draft * 1e3:.0f}ms over {times.rounds} rounds"
            f" ({times.verify * 1e3 / times.rounds:.1f} / {times.draft * 1e3 / times.rounds:.1f} ms per round)"
        )
    elif times.rounds:
        lines.append(
            f"[timing] rounds={times.total * 1e3:.0f}ms over {times.rounds} rounds"
            f" ({times.total * 1e3 / times.rounds:.1f} ms per round; draft and verify were not timed apart)"
        )
    lines.append(f"generated {usage.generated_tokens} tokens in {usage.rounds} rounds (tau={usage.tau:.3f})")
    tested = usage.accepted + usage.rejected
    if tested or usage.unreached:
        lines.append(f"drafts: {usage.accepted} of {tested} tested were accepted, {usage.unreached} never reached")
    if usage.decode_seconds > 0:
        lines.append(f"decode: {usage.tokens_per_second:.2f} tok/s ({usage.decode_seconds:.3f} s)")
    lines.append(_finished(reply))
    return lines


def _told_lines(reply: Reply, told: Told) -> list[str]:
    """The same of a reply that a server decoded."""
    lines = [f"server: {', '.join(told_parts(told))}"]
    lines.append(f"first text after {reply.usage.first_token_seconds:.3f} s, {plural(reply.times.rounds, 'piece')}")
    if reply.usage.tokens_per_second:
        clock = "this machine's" if told.decode_seconds is None else "the server's"
        lines.append(f"decode: {reply.usage.tokens_per_second:.2f} tok/s on {clock} clock")
    return [*lines, _finished(reply)]


def _finished(reply: Reply) -> str:
    ended = f" at {reply.stop!r}" if reply.stop else ""
    penalties = "".join(f", {kind} penalty {value:g}" for kind, value in reply.controls.sampling.penalties)
    return f"finished: {reply.reason}{ended}, seed {reply.controls.sampling.seed}{penalties}"


def _rate(count: int, seconds: float) -> float | None:
    return round(count / seconds, 3) if seconds > 0 else None


def _per_round(seconds: float | None, rounds: int) -> float | None:
    return None if seconds is None or not rounds else round(seconds * 1e3 / rounds, 3)
