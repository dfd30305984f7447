"""Where a round's time goes: a bench decoded once more with clocks around its phases.

Each second of decoding is in exactly one phase, so the shares add up to the whole. Where a device computes while the
host goes on (CUDA, MLX), a phase of the device is what the backend measured, or else the call's time. Knows no tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Generic

from eagle3chat.bench import WARM_UP_TOKENS, Plan, Run, chain_name, decode
from eagle3chat.engine.backend import Backend, D, Verdict, Worth
from eagle3chat.engine.pair import Pair
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.session import open_length
from eagle3chat.engine.stopwatch import Stopwatch

DRAFT, VERIFY, READING, COMMIT = "draft", "verify", "reading", "commit"
PHASES = {
    "draft.confirm": "draft: confirmed rows, with the first proposal",
    "draft.propose": "draft: further proposals, picking",
    DRAFT: "draft: noise, and the rest",
    "verify.linears": "target: linears",
    "verify.attention": "target: attention, with rotary positions and the cache",
    "verify.norms": "target: norms and residuals",
    "verify.gate": "target: activation of the MLP",
    "verify.head": "target: head",
    "verify.rest": "target: embedding, taps, and the rest",
    VERIFY: "choosing: noise, penalties, filters, judging",
    READING: "reading the verdict: sync, transfer, unpacking",
    COMMIT: "commit",
    "text": "stops and text",
    "events": "between rounds: events, counts, the next chain",
}
WHOLE = {DRAFT: "draft", VERIFY: "target and choosing"}  # in place of the above where nothing is told within them


@dataclass(frozen=True, slots=True)
class Profile:
    """The phases of one chain."""

    chain: int  # or AUTO
    rounds: int
    round_ms: float  # decode seconds / rounds, with the clocks
    plain_ms: float | None  # the same without them, of the bench's own runs; None: there are none
    phases: tuple[tuple[str, float], ...]  # (a key of PHASES, milliseconds a round); they add up to `round_ms`


class TimedBackend(Generic[D]):
    """A backend whose calls are counted by a stopwatch. See engine.backend.Backend.

    Args:
        at_once: A call computes before it returns, so its time is that of its work.
    """

    def __init__(self, backend: Backend[D], watch: Stopwatch, *, at_once: bool) -> None:
        self._backend, self._watch, self._at_once = backend, watch, at_once
        self._launched = 0.0  # seconds of the last draft's call
        self._draft = watch.timed(DRAFT, backend.draft)
        self._verify = watch.timed(VERIFY, backend.verify)
        self._commit = watch.timed(COMMIT, backend.commit)

    @property
    def capacity(self) -> int:
        """The backend's."""
        return self._backend.capacity

    @property
    def max_chain(self) -> int:
        """The backend's."""
        return self._backend.max_chain

    def prefill(self, tokens: Sequence[int], keep: int) -> Iterator[int]:
        """Not counted: not part of a round."""
        with self._watch.ignored():
            yield from self._backend.prefill(tokens, keep)

    @property
    def early(self) -> bool:
        """The backend's."""
        return self._backend.early

    def draft(self, chain: int, sampling: Sampling, worth: Worth | None = None) -> D:
        """Counted."""
        before = self._watch.seconds[DRAFT]
        made: D = self._draft(chain, sampling, worth)
        self._launched = self._watch.seconds[DRAFT] - before
        return made

    def verify(self, draft: D, sampling: Sampling) -> Verdict:
        """Counted; where the backend tells the device's own times, the rest of both calls counts as reading."""
        watch, seconds = self._watch, self._watch.seconds
        before = sum(seconds.values())
        verdict: Verdict = self._verify(draft, sampling)
        called = sum(seconds.values()) - before
        if verdict.verify_seconds is None or verdict.draft_seconds is None:
            return verdict
        watch.add(READING, called - verdict.verify_seconds)
        watch.add(VERIFY, verdict.verify_seconds - called)
        if not self._at_once:
            watch.add(READING, self._launched - verdict.draft_seconds)
            watch.add(DRAFT, verdict.draft_seconds - self._launched)
        return verdict

    def commit(self, accepted: int, anchor: int) -> None:
        """Counted."""
        self._commit(accepted, anchor)

    def close(self) -> None:
        """Close the backend."""
        self._backend.close()


def profile(
    pair: Pair, plan: Plan, runs: Sequence[Run], tell: Callable[[str, float], None] | None = None
) -> tuple[Profile, ...]:
    """Decode the plan's prompts once with each chain, and count.

    Args:
        pair: Open and idle.
        runs: Of the bench without clocks, for comparison.
        tell: As `measure`'s.

    Raises:
        PromptError: A prompt does not fit the context.
        SettingError: A chain is above what the pair can draft.
    """
    profiles = []
    for number, chain in enumerate(plan.chains):
        watch, learnt = Stopwatch(), open_length(pair.backend)
        timed = dataclasses.replace(pair, backend=TimedBackend(pair.backend, watch, at_once=_at_once(pair)))
        decoded = []
        with _within(pair, watch):
            with watch.ignored():
                decode(timed, plan, plan.cases[0], chain, WARM_UP_TOKENS, learnt)
            for case in plan.cases:
                if tell is not None:
                    tell(f"profile, chain {chain_name(chain)}", number / len(plan.chains))
                decoded.append(decode(timed, plan, case, chain, plan.max_new_tokens, learnt))
        decode_seconds = sum(usage.decode_seconds for usage, _ in decoded)
        in_rounds = sum(r.seconds for _, rounds in decoded for r in rounds)
        watch.add("text", in_rounds - sum(watch.seconds.values()))
        watch.add("events", decode_seconds - in_rounds)
        count = sum(usage.rounds for usage, _ in decoded)
        plain = [run.usage for run in runs if run.chain == chain]
        profiles.append(
            Profile(
                chain=chain,
                rounds=count,
                round_ms=decode_seconds * 1e3 / count,
                plain_ms=sum(u.decode_seconds for u in plain) * 1e3 / sum(u.rounds for u in plain) if plain else None,
                phases=tuple((name, watch.seconds[name] * 1e3 / count) for name in PHASES if name in watch.seconds),
            )
        )
    return tuple(profiles)


def _at_once(pair: Pair) -> bool:
    return pair.info.backend == "scripted" or (pair.info.backend == "torch" and pair.info.device == "cpu")


def _within(pair: Pair, watch: Stopwatch) -> AbstractContextManager[None]:
    """Clocks inside the backend, where these tell what the work costs."""
    if pair.info.backend != "torch" or not _at_once(pair):
        return nullcontext()
    from eagle3chat.engine.torch_profile import watched

    within: AbstractContextManager[None] = watched(pair.backend, watch)
    return within


def lines(profiles: Sequence[Profile]) -> list[str]:
    """The table: a phase a line, a chain a column."""
    detailed = any(name.startswith("verify.") for p in profiles for name, _ in p.phases)
    head = "".join(f"   chain {chain_name(p.chain):<7}" for p in profiles)
    told = [f"{'a round by its phases, decoded once more with clocks':<54}{head}"]
    told.append(" " * 54 + "        ms  share" * len(profiles))
    for name, label in PHASES.items():
        of = [dict(p.phases).get(name) for p in profiles]
        if any(of):
            shown = label if detailed else WHOLE.get(name, label)
            told.append(f"{shown:<54}" + "".join(_cell(ms, p.round_ms) for ms, p in zip(of, profiles, strict=True)))
    told.append(f"{'all of it':<54}" + "".join(_cell(p.round_ms, p.round_ms) for p in profiles))
    bare = "".join(f"{p.plain_ms:10.3f}       " if p.plain_ms is not None else " " * 17 for p in profiles)
    return [*told, f"{'without clocks':<54}{bare}".rstrip(), ""]


def _cell(ms: float | None, whole: float) -> str:
    return " " * 16 + "-" if ms is None else f"{ms:10.3f} {ms / whole:6.1%}"
