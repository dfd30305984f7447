"""What the runs of a bench come to: speeds, acceptance, speed-up and sameness, one definition each.

    tok/s        generated tokens / decode seconds, prefill excluded; over all runs, and the median over prompts
                 (of a prompt: the median over its repeats, so that one disturbed reply does not tell)
    tau          emitted tokens / rounds
    acceptance   conditional: accepted / judged at each place of the chain
    speed-up     tok/s against chain 0: the median of the prompts' ratios, and the ratio of the totals
                 (of a prompt: the median over its repeats, each against chain 0 of the same repeat, close in time)
    shares       of decode seconds: the draft's passes, the target's passes with judging, and the host: all that is left
    same text    runs whose token ids equal those of chain 0 on the same prompt

Pure functions of runs. Knows no engine and prints nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from eagle3chat.bench import Run
from eagle3chat.bench_rows import Spread


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a text leaves that of chain 0."""

    case: str
    chain: int
    index: int  # of the first token that differs, from 0
    gap: float | None  # greedy: logit of chain 0's token minus that of the other; None: not known


@dataclass(frozen=True, slots=True)
class ChainSummary:
    """The figures of one chain over all runs."""

    chain: int  # or AUTO
    runs: int
    tokens: int
    decode_seconds: float
    rounds: int
    tokens_per_second: float
    median_tokens_per_second: float
    round_ms: float  # decode seconds / rounds: what comes between rounds counts
    rounds_ms: Spread  # of the rounds alone
    draft_ms: float | None  # a round; None: not timed apart
    verify_ms: float | None
    draft_share: float | None  # of decode seconds; None: not timed apart
    verify_share: float | None
    host_share: float | None
    host_shares: Spread | None  # over replies: a reply in which something else took the machine counts as one
    tau: float
    acceptance: tuple[float | None, ...]  # conditional
    speedup_median: float | None  # None: chain 0 was not run
    speedup_total: float | None
    speedups: Spread | None  # over prompts
    speedup_lowest: float | None  # of any prompt
    slower: tuple[tuple[str, float], ...]  # prompts with a speed-up below 1, the lowest first; else the lowest one
    same: int | None
    differences: tuple[Difference, ...]


def summarise(runs: Sequence[Run], chains: Sequence[int], *, greedy: bool) -> tuple[ChainSummary, ...]:
    """One summary a chain, in the given order."""
    return tuple(_summary(runs, chain, greedy=greedy) for chain in chains)


def tau_by_kind(runs: Sequence[Run], chain: int) -> tuple[tuple[str, int, float], ...]:
    """(kind of prompt, prompts, tau) for one chain, the highest tau first."""
    kinds: dict[str, list[Run]] = {}
    for run in runs:
        if run.chain == chain:
            kinds.setdefault(run.case.kind, []).append(run)
    rows = [(kind, len({r.case.id for r in group}), _tau(group)) for kind, group in kinds.items()]
    return tuple(sorted(rows, key=lambda row: (-row[2], row[0])))


def _summary(runs: Sequence[Run], chain: int, *, greedy: bool) -> ChainSummary:
    own = [run for run in runs if run.chain == chain]
    plain = {(run.case.id, run.repeat): run for run in runs if run.chain == 0}
    tokens, seconds = _tokens(own), _seconds(own)
    rounds = sum(run.usage.rounds for run in own)
    speeds = _medians((run.case.id, _speed(run)) for run in own)
    differences = tuple(
        Difference(run.case.id, chain, index, _gap(other, run, index) if greedy else None)
        for run in own
        if (other := plain.get((run.case.id, run.repeat))) is not None
        and (index := first_difference(other.token_ids, run.token_ids)) is not None
    )
    by_case = _medians(
        (run.case.id, _speed(run) / _speed(other))
        for run in own
        if (other := plain.get((run.case.id, run.repeat))) is not None
    )
    ratios = list(by_case.values())
    draft_ms, verify_ms = _measured(own, "draft", rounds), _measured(own, "verify", rounds)
    shares = [None if ms is None else ms * rounds / seconds / 1e3 for ms in (draft_ms, verify_ms)]
    return ChainSummary(
        chain=chain,
        runs=len(own),
        tokens=tokens,
        decode_seconds=seconds,
        rounds=rounds,
        tokens_per_second=tokens / seconds,
        median_tokens_per_second=statistics.median(speeds.values()),
        round_ms=seconds * 1e3 / rounds,
        rounds_ms=Spread.of(r.seconds * 1e3 for run in own for r in run.rounds),
        draft_ms=draft_ms,
        verify_ms=verify_ms,
        draft_share=shares[0],
        verify_share=shares[1],
        host_shares=_host_shares(own),
        host_share=None if shares[0] is None or shares[1] is None else 1.0 - shares[0] - shares[1],
        tau=_tau(own),
        acceptance=_acceptance(own),
        speedup_median=statistics.median(ratios) if ratios else None,
        speedup_total=tokens / seconds / (_tokens(plain.values()) / _seconds(plain.values())) if plain else None,
        speedups=Spread.of(ratios) if ratios else None,
        speedup_lowest=min(ratios, default=None),
        slower=_slower(by_case),
        same=len(own) - len(differences) if plain else None,
        differences=differences,
    )


def _host_shares(runs: Sequence[Run]) -> Spread | None:
    shares = []
    for run in runs:
        parts = [_measured([run], part, 1) for part in ("draft", "verify")]
        if parts[0] is None or parts[1] is None or run.usage.decode_seconds <= 0:
            return None
        shares.append(1.0 - (parts[0] + parts[1]) / 1e3 / run.usage.decode_seconds)
    return Spread.of(shares)


def _slower(ratios: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    ordered = sorted(ratios.items(), key=lambda item: item[1])
    return tuple(item for place, item in enumerate(ordered) if item[1] < 1.0 or place == 0)


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first index at which two replies differ, a missing token included; None: they are the same."""
    if one == other:
        return None
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _gap(plain: Run, other: Run, index: int) -> float | None:
    """By how much chain 0's token was ahead of the other one, in logits, where chain 0 looked at both.

    In a greedy round with nothing drafted the probabilities are softmax(logits), so log(p1 / p2) is the margin.
    """
    if index >= len(plain.rounds) or index >= len(other.token_ids):
        return None
    at = plain.rounds[index]
    looked = {token.id: token.target_p for token in at.considered}
    mine = at.own.target_p if at.own is not None else None
    theirs = looked.get(other.token_ids[index])
    return math.log(mine / theirs) if mine and theirs else None


def _speed(run: Run) -> float:
    return _tokens([run]) / _seconds([run])


def _medians(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Of each prompt's values."""
    cases: dict[str, list[float]] = {}
    for case, value in values:
        cases.setdefault(case, []).append(value)
    return {case: statistics.median(group) for case, group in cases.items()}


def _measured(runs: Sequence[Run], part: str, rounds: int) -> float | None:
    each = [r.draft_seconds if part == "draft" else r.verify_seconds for run in runs for r in run.rounds]
    known = [seconds for seconds in each if seconds is not None]
    return sum(known) * 1e3 / rounds if len(known) == len(each) else None


def _acceptance(runs: Sequence[Run]) -> tuple[float | None, ...]:
    places = max(len(run.usage.reached_at) for run in runs)
    reached, accepted = [0] * places, [0] * places
    for run in runs:
        for place, (r, a) in enumerate(zip(run.usage.reached_at, run.usage.accepted_at, strict=True)):
            reached[place] += r
            accepted[place] += a
    return tuple(a / r if r else None for a, r in zip(accepted, reached, strict=True))


def _tau(runs: Sequence[Run]) -> float:
    return _tokens(runs) / sum(run.usage.rounds for run in runs)


def _tokens(runs: Iterable[Run]) -> int:
    return sum(run.usage.generated_tokens for run in runs)


def _seconds(runs: Iterable[Run]) -> float:
    return max(sum(run.usage.decode_seconds for run in runs), 1e-9)  # a clock may be too coarse for a short reply
