"""Penalties on the device: each row as the plain rule says, and speculation that changes no token under them."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from reference import Reference, Truth
from tiny import tiny_bundle

from eagle3chat.engine.backend import Verdict
from eagle3chat.engine.bundle import open_bundle
from eagle3chat.engine.sampling import Before, Sampling, choose, penalised
from eagle3chat.engine.speculate import agreed
from eagle3chat.engine.torch_backend import TorchBackend
from eagle3chat.engine.torch_penalty import Said
from eagle3chat.engine.torch_penalty import penalised as penalised_rows

VOCAB, NEAR = 320, 1e-4
CPU = torch.device("cpu")
PENALTIES = {
    "repetition": {"repetition": 1.3},
    "presence": {"presence": 1.5},
    "frequency": {"frequency": 1.9},
    "negative": {"repetition": 0.9, "presence": -0.7, "frequency": -0.2},
    "all": {"repetition": 1.15, "presence": 0.6, "frequency": 0.4},
}
DRAWS = {
    "greedy": Sampling(),
    "warm": Sampling(temperature=0.8, seed=5),
    "filtered": Sampling(temperature=1.0, top_k=30, top_p=0.9, min_p=0.02, seed=6),
}


def prompt(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 60) for _ in range(length)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bundle(tmp_path_factory.mktemp("pair"), vocab=VOCAB, agree=0.9, hidden=32, layers=3, intermediate=48)


@pytest.fixture(scope="module")
def backend(path: Path) -> Iterable[TorchBackend]:
    made = TorchBackend(open_bundle(path), device="cpu", dtype="float32")
    yield made
    made.close()


@pytest.fixture(scope="module")
def reference(path: Path) -> Reference:
    return Reference(path)


def play(backend: TorchBackend, tokens: list[int], chain: int, sampling: Sampling) -> tuple[Verdict, int]:
    """One round; `tokens` grows by what it emits."""
    verdict = backend.verify(backend.draft(chain, sampling), sampling)
    accepted = agreed(verdict)
    backend.commit(accepted, verdict.chosen[accepted])
    tokens += [*verdict.drafted[:accepted], verdict.chosen[accepted]]
    return verdict, accepted


def begin(backend: TorchBackend, tokens: Sequence[int]) -> list[int]:
    assert list(backend.prefill(tokens, 0))
    return list(tokens)


def assert_true(verdict: Verdict, truth: Truth) -> None:
    assert (verdict.drafted, verdict.chosen) == (truth.drafted, truth.chosen)
    for name in ("draft_p", "target_p", "chosen_p", "margin"):
        assert getattr(verdict, name) == pytest.approx(getattr(truth, name), abs=NEAR), name


@pytest.mark.parametrize("penalty", PENALTIES)
def test_rows_are_penalised_as_the_plain_rule_says(penalty: str) -> None:
    sampling = Sampling(**PENALTIES[penalty])
    rng = np.random.default_rng(1)
    logits = torch.from_numpy(rng.normal(0.0, 3.0, (4, 50)).astype(np.float32))
    said, before, reply, drafted = Said(50, CPU), [3, 7, 7, 40], [7, 9, 9, 11], [9, 9, 30]
    said.begin(before)
    for token in reply:
        said.add([token])
        counts = said.counts(sampling)
    got = penalised_rows(logits, counts.rows(torch.tensor(drafted)), sampling).tolist()
    for row, (values, line) in enumerate(zip(logits.tolist(), got, strict=True)):
        assert line == pytest.approx(penalised(values, sampling, Before(before, [*reply, *drafted[:row]])), abs=1e-5)
    ids = [2, 7, 9, 30, 49]
    counts = said.counts(sampling).at(torch.tensor(ids))
    counts.add(torch.tensor([3]))
    row = penalised_rows(logits[:1, :5], counts, sampling)[0].tolist()
    assert row == pytest.approx(
        penalised(logits[0, :5].tolist(), sampling, Before(before, [*reply, 30]), ids), abs=1e-5
    )


@pytest.mark.parametrize("penalty", PENALTIES)
def test_every_round_says_what_the_slow_truth_says(backend: TorchBackend, reference: Reference, penalty: str) -> None:
    rng = random.Random(penalty)
    start = prompt(25, seed=len(penalty))
    tokens = begin(backend, start)
    seen: Counter[int] = Counter()
    while len(tokens) < 90:
        chain = rng.choice((0, 1, 3, 3, 5))
        sampling = replace(rng.choice(list(DRAWS.values())), **PENALTIES[penalty])
        truth = reference.round(tokens, chain, sampling, len(start))
        verdict, accepted = play(backend, tokens, chain, sampling)
        assert_true(verdict, truth)
        seen[accepted] += 1
    assert {0, 1, 2} <= set(seen), seen


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("draw", DRAWS)
def test_speculation_changes_no_token(backend: TorchBackend, reference: Reference, draw: str, penalty: str) -> None:
    sampling = replace(DRAWS[draw], **PENALTIES[penalty])
    start = prompt(12, seed=3)
    wanted = list(start)
    while len(wanted) < 60:
        logits = reference.target(wanted)[0][-1].tolist()
        wanted.append(choose(logits, len(wanted), sampling, Before(start, wanted[len(start) :])))
    unpenalised = begin(backend, start)
    while len(unpenalised) < 60:
        play(backend, unpenalised, 0, DRAWS[draw])
    assert unpenalised != wanted, "the penalty does something"
    for mix in ((0,), (1,), (3,), (6,), (3, 0, 1, 6, 0, 0, 2, 5)):
        tokens, chains = begin(backend, start), itertools.cycle(mix)
        while len(tokens) < 60:
            play(backend, tokens, next(chains), sampling)
        assert tokens[:60] == wanted, f"chains {mix}"


def test_a_penalty_may_be_turned_on_and_off_in_a_reply(backend: TorchBackend, reference: Reference) -> None:
    on = Sampling(**PENALTIES["all"])
    start = prompt(20, seed=9)
    tokens = begin(backend, start)
    for sampling in (Sampling(), Sampling(), on, on, Sampling(), replace(on, temperature=1.0), Sampling(), on):
        truth = reference.round(tokens, 3, sampling, len(start))
        assert_true(play(backend, tokens, 3, sampling)[0], truth)


def test_a_new_prompt_begins_anew(backend: TorchBackend, reference: Reference) -> None:
    sampling = Sampling(**PENALTIES["all"])
    tokens = begin(backend, prompt(20, seed=4))
    for _ in range(4):
        play(backend, tokens, 3, sampling)
    again = [*tokens, *prompt(5, seed=5)]
    keep = len(tokens) - 2
    assert list(backend.prefill(again, keep))
    truth = reference.round(again, 3, sampling, len(again))
    assert_true(play(backend, list(again), 3, sampling)[0], truth)


def test_drafted_tokens_leave_no_trace_until_they_are_committed(backend: TorchBackend) -> None:
    sampling = Sampling(temperature=0.9, seed=2, **PENALTIES["all"])
    begin(backend, prompt(20, seed=6))
    first = backend.verify(backend.draft(5, sampling), sampling)
    for _ in range(2):
        again = backend.verify(backend.draft(0, sampling), sampling)
        assert (again.chosen[0], again.chosen_p[0]) == (first.chosen[0], pytest.approx(first.chosen_p[0], abs=1e-5))


def test_a_round_with_penalties_reads_the_device_once(backend: TorchBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = begin(backend, prompt(20, seed=7))
    reads: list[str] = []
    for name in ("tolist", "item", "__bool__", "__int__", "__float__", "__index__", "numpy", "cpu", "nonzero"):
        original = getattr(torch.Tensor, name)

        def counted(self, *args, _name=name, _original=original, **options):
            reads.append(_name)
            return _original(self, *args, **options)

        monkeypatch.setattr(torch.Tensor, name, counted)
    for draw in DRAWS.values():
        reads.clear()
        play(backend, tokens, 3, replace(draw, **PENALTIES["all"]))
        assert reads == ["tolist"]


def test_without_penalties_nothing_is_counted(backend: TorchBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = begin(backend, prompt(20, seed=8))

    def never(*args, **options):
        raise AssertionError("a tensor was made")

    monkeypatch.setattr("eagle3chat.engine.torch_penalty.upload", never)
    play(backend, tokens, 3, DRAWS["warm"])
    assert backend._said.counts(DRAWS["warm"]) is None
