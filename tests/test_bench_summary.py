"""The figures of a bench, from runs made by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from eagle3chat.bench import Case, Run, turned
from eagle3chat.bench_summary import first_difference, summarise, tau_by_kind
from eagle3chat.engine.events import Round, Token, Usage

A, B = Case("a", "code", "x"), Case("b", "chat", "y")


def token(number: int, p: float | None = None) -> Token:
    return Token(number, str(number), None, p)


def plain_round(index: int, number: int, p: float = 0.5, other: tuple[int, float] | None = None) -> Round:
    considered = () if other is None else (token(*other),)
    return Round(index, index, 0, 0.0, (), 0, token(number, p), "plain", considered, "", 0.1)


def run(case: Case, chain: int, ids: list[int], seconds: float, *, rounds: int | None = None, repeat: int = 0) -> Run:
    """A run that emits the ids one a round, whatever its usage says."""
    count = len(ids) if rounds is None else rounds
    usage = Usage(5, 0, len(ids), count, 0, 0, 0, (), (), (), 0.1, seconds, 0.1)
    return Run(case, repeat, chain, usage, tuple(plain_round(i, n) for i, n in enumerate(ids)))


RUNS = [
    run(A, 0, [1, 2, 3, 4], 4.0),
    run(A, 2, [1, 2, 3, 4], 2.0, rounds=2),
    run(B, 0, [5, 6], 1.0),
    run(B, 2, [5, 6], 2.0, rounds=2),
]


def test_speeds_and_ratios_have_one_definition_each() -> None:
    plain, spec = summarise(RUNS, (0, 2), greedy=True)
    assert (plain.tokens_per_second, plain.median_tokens_per_second) == (6 / 5, 1.5)
    assert (spec.tokens_per_second, spec.median_tokens_per_second) == (6 / 4, 1.5)
    assert spec.speedup_total == pytest.approx(5 / 4)
    assert spec.speedup_median == pytest.approx((2.0 + 0.5) / 2)
    assert (plain.speedup_total, plain.speedup_median) == (1.0, 1.0)
    assert (plain.tau, spec.tau) == (1.0, 1.5)
    assert spec.round_ms == 1000.0
    assert (spec.same, spec.runs, spec.differences) == (2, 2, ())


def test_repeats_of_a_prompt_count_as_one_and_a_slow_one_does_not_tell() -> None:
    ids, runs = [1, 2, 3, 4], list(RUNS)
    for repeat, seconds in ((1, 6.0), (2, 2.0)):
        runs += [run(A, 0, ids, 4.0, repeat=repeat), run(A, 2, ids, seconds, rounds=2, repeat=repeat)]
    spec = summarise(runs, (2,), greedy=True)[0]
    assert spec.median_tokens_per_second == 1.5  # of a: 2.0, 0.67 and 2.0, of b: 1.0
    assert spec.speedup_median == pytest.approx((2.0 + 0.5) / 2)
    assert spec.speedup_lowest == 0.5
    assert spec.same == 4


def test_acceptance_adds_up_runs_of_unequal_length() -> None:
    long = replace(RUNS[1].usage, reached_at=(10, 5), accepted_at=(5, 1), drafted_at=(10, 10))
    short = replace(RUNS[3].usage, reached_at=(10,), accepted_at=(1,), drafted_at=(10,))
    spec = summarise([replace(RUNS[1], usage=long), replace(RUNS[3], usage=short)], (2,), greedy=True)[0]
    assert spec.acceptance == (6 / 20, 1 / 5)
    assert (spec.speedup_median, spec.speedup_total, spec.same) == (None, None, None)  # without chain 0


def test_a_difference_is_told_with_its_place_and_margin() -> None:
    plain = run(A, 0, [1, 2, 3], 1.0)
    near = replace(plain, rounds=(plain.rounds[0], plain_round(1, 2, 0.4, (9, 0.2)), plain.rounds[2]))
    runs = [near, run(A, 2, [1, 9, 3], 1.0)]
    (difference,) = summarise(runs, (2,), greedy=True)[0].differences
    assert (difference.case, difference.index) == ("a", 1)
    assert difference.gap == pytest.approx(math.log(2))
    assert summarise(runs, (2,), greedy=True)[0].same == 0
    assert summarise(runs, (2,), greedy=False)[0].differences[0].gap is None


@pytest.mark.parametrize(
    ("one", "other", "index"),
    [((), (), None), ((1, 2), (1, 2), None), ((1, 2), (1, 3), 1), ((1, 2), (1,), 1), ((), (1,), 0)],
)
def test_first_difference(one: tuple[int, ...], other: tuple[int, ...], index: int | None) -> None:
    assert first_difference(one, other) == index


def test_draft_and_verify_times_need_every_round() -> None:
    timed = replace(RUNS[1], rounds=tuple(replace(r, draft_seconds=0.1, verify_seconds=0.2) for r in RUNS[1].rounds))
    spec = summarise([timed], (2,), greedy=True)[0]
    assert spec.draft_ms == pytest.approx(4 * 100 / 2)
    assert summarise([timed, RUNS[3]], (2,), greedy=True)[0].draft_ms is None


def test_tau_by_kind_is_sorted() -> None:
    assert tau_by_kind(RUNS, 2) == (("code", 1, 2.0), ("chat", 1, 1.0))


def test_every_chain_comes_first_equally_often() -> None:
    orders = [turned((0, 2, 3), turn) for turn in range(6)]
    assert all(sorted(order) == [0, 2, 3] for order in orders)
    assert [order[0] for order in orders] == [0, 2, 3, 0, 2, 3]


def timed(one: Run, draft: float | None, verify: float | None) -> Run:
    rounds = tuple(replace(r, draft_seconds=draft, verify_seconds=verify) for r in one.rounds)
    return replace(one, rounds=rounds)


def test_shares_are_of_decode_seconds_and_the_host_has_the_rest() -> None:
    (summary,) = summarise([timed(RUNS[0], 0.1, 0.7)], (0,), greedy=True)  # 4 rounds in 4 s
    assert (summary.draft_share, summary.verify_share) == (pytest.approx(0.1), pytest.approx(0.7))
    assert summary.host_share == pytest.approx(0.2)
    assert summary.host_shares is not None and summary.host_shares.median == pytest.approx(0.2)
    (untold,) = summarise([timed(RUNS[0], None, 0.7)], (0,), greedy=True)
    assert (untold.draft_share, untold.host_share, untold.host_shares) == (
        None,
        None,
        None,
    ) and untold.verify_share == pytest.approx(0.7)


def test_prompts_on_which_a_chain_lost_are_named_and_else_the_lowest() -> None:
    runs = [run(case, 0, [1, 2], 2.0) for case in (A, B)] + [run(A, 2, [1, 2], 4.0), run(B, 2, [1, 2], 2.5)]
    assert summarise(runs, (2,), greedy=True)[0].slower == (("a", 0.5), ("b", 0.8))
    faster = [*runs[:2], run(A, 2, [1, 2], 1.0), run(B, 2, [1, 2], 0.5)]
    (summary,) = summarise(faster, (2,), greedy=True)
    assert summary.slower == (("a", 2.0),)
    assert summary.speedups is not None
    assert (summary.speedups.low, summary.speedups.median, summary.speedups.high) == (2.5, 3.0, 3.5)
