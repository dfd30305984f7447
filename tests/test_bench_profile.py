"""A round's phases: each second counted once, whatever runs within what."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from tiny import tiny_bundle

from eagle3chat.bench import Case, Plan, measure
from eagle3chat.bench_profile import PHASES, TimedBackend, lines, profile
from eagle3chat.engine import torch_backend, torch_proposal
from eagle3chat.engine.backend import Verdict
from eagle3chat.engine.pair import open_pair
from eagle3chat.engine.requests import PairOptions
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.stopwatch import Stopwatch
from eagle3chat.engine.torch_profile import watched
from eagle3chat.kernels.cpu import library

CASES = (Case("a", "k", "one two"), Case("b", "k", "three"))
GREEDY = Sampling()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which only goes on when it is told to."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def test_a_call_within_another_is_taken_off_it(clock: list[float]) -> None:
    watch = Stopwatch()

    def spend(seconds: float) -> None:
        clock[0] += seconds

    leaf, inner = watch.leaf("leaf", spend), watch.timed("inner", lambda: [spend(1.0), leaf(2.0)])
    outer = watch.timed("outer", lambda: [spend(4.0), inner(), leaf(8.0)])
    outer()
    leaf(16.0)
    with watch.ignored():
        outer()
        watch.add("new", 32.0)
    assert watch.seconds == {"leaf": 2.0 + 8.0 + 16.0, "inner": 1.0, "outer": 4.0, "new": 0.0}


class Slow:
    """A backend whose calls take a second of the host each; its device needs `draft` and `verify` seconds."""

    capacity, max_chain = 100, 3

    def __init__(self, clock: list[float], draft: float | None, verify: float | None) -> None:
        self._clock, self._times = clock, (draft, verify)

    def prefill(self, tokens: Sequence[int], keep: int) -> Iterator[int]:
        self._clock[0] += 100.0
        yield len(tokens) - 1

    def draft(self, chain: int, sampling: Sampling, worth: object = None) -> int:
        self._clock[0] += 1.0
        return chain

    def verify(self, draft: int, sampling: Sampling) -> Verdict:
        self._clock[0] += 4.0
        return Verdict((), (), (), (1,), (1.0,), ((),), (1.0,), *self._times)

    def commit(self, accepted: int, anchor: int) -> None:
        self._clock[0] += 0.5

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("at_once", "times", "told"),
    [
        (True, (1.0, 3.0), {"draft": 1.0, "verify": 3.0, "reading": 1.0}),
        (False, (2.0, 2.5), {"draft": 2.0, "verify": 2.5, "reading": 0.5}),  # the device was still drafting
        (False, (None, None), {"draft": 1.0, "verify": 4.0}),
    ],
    ids=["a CPU", "a device with clocks", "a device without"],
)
def test_the_backends_calls_are_split_by_what_it_tells(
    clock: list[float], at_once: bool, times: tuple[float | None, float | None], told: dict[str, float]
) -> None:
    watch = Stopwatch()
    backend = TimedBackend(Slow(clock, *times), watch, at_once=at_once)
    assert list(backend.prefill([1, 2, 3], 0)) == [2]
    backend.verify(backend.draft(2, GREEDY), GREEDY)
    backend.commit(0, 1)
    assert watch.seconds == {**told, "commit": 0.5}


def test_the_phases_add_up_to_the_rounds() -> None:
    pair = open_pair(PairOptions(backend="scripted"))
    plan = Plan(CASES, (0, 2), 3, GREEDY, 12)
    profiles = profile(pair, plan, list(measure(pair, plan)))
    assert [p.chain for p in profiles] == [0, 2]
    for p in profiles:
        assert p.plain_ms is not None and p.plain_ms > 0
        assert sum(ms for _, ms in p.phases) == pytest.approx(p.round_ms)
        assert all(ms >= 0 for _, ms in p.phases)
        assert {name for name, _ in p.phases} >= {"draft", "verify", "commit", "text", "events"} and p.rounds > 0
    table = lines(profiles)
    assert any(line.startswith("target and choosing") for line in table)
    assert table[-3].startswith("all of it") and table[-3].count("100.0%") == 2


@pytest.mark.parametrize(
    ("dtype", "bundle"),
    [("float32", {}), ("float32", {"qk_norm": True}), ("int4", {"quantized": True, "own_embedding": True})],
    ids=["layers", "layers with head norms", "int4"],
)
def test_clocks_in_torch_say_what_kinds_of_work_there_are_and_go_again(
    dtype: str, bundle: dict[str, bool], tmp_path: Path
) -> None:
    path = tiny_bundle(tmp_path, **bundle)
    pair = open_pair(PairOptions(backend="torch", device="cpu", dtype=dtype, bundle=str(path)))
    plan = Plan(CASES, (3,), 1, Sampling(temperature=0.7, seed=1), 24)
    before = list(measure(pair, plan))
    (told,) = profile(pair, plan, before)
    phases = dict(told.phases)
    assert sum(phases.values()) == pytest.approx(told.round_ms)
    parts = {"verify.linears", "verify.attention", "verify.norms", "verify.gate", "verify.head"}
    parts |= {"draft.confirm", "draft.propose"}
    assert all(phases[name] > 0 for name in parts), phases
    assert all(ms > -1e-3 for ms in phases.values()), phases
    assert set(phases) <= set(PHASES)
    after = list(measure(pair, plan))
    assert [run.token_ids for run in after] == [run.token_ids for run in before]
    assert told.rounds == sum(run.usage.rounds for run in before)
    backend = pair.backend
    assert torch_backend.propose is torch_proposal.propose
    assert "_catch_up" not in vars(backend) and type(backend._target).__name__ == "Target"
    pair.close()


@pytest.mark.skipif(library() is None, reason="the compiled kernels are not there")
def test_tapes_are_recorded_anew_after_the_clocks(tmp_path: Path) -> None:
    path = tiny_bundle(tmp_path, quantized=True)
    pair = open_pair(PairOptions(backend="torch", device="cpu", dtype="int4", bundle=str(path)))
    program = pair.backend._target.program
    if program is None:
        pytest.skip("the kernels do not serve here")
    watch = Stopwatch()
    with watched(pair.backend, watch), torch.inference_mode():
        pair.backend._target(torch.tensor([5, 6]))
        assert watch.seconds["verify.linears"] > 0 and program.tapes
    assert not program.tapes
    counted = dict(watch.seconds)
    with torch.inference_mode():
        pair.backend._target(torch.tensor([5, 6]))
    assert watch.seconds == counted
    pair.close()


def test_a_profile_without_a_plain_run_has_no_comparison() -> None:
    pair = open_pair(PairOptions(backend="scripted"))
    (one,) = profile(pair, Plan(CASES[:1], (1,), 1, GREEDY, 6), [])
    assert one.plain_ms is None
    assert dataclasses.asdict(one)["chain"] == 1
