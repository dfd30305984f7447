"""All backends say the same of the same bundle: text, and probabilities within 1e-4."""

from __future__ import annotations

import importlib.util

import pytest
from contract_game import GREEDY, NEAR, NEEDS, WARM, Bench, keep_all, mixed, prefilled, prompt_of

from eagle3chat.engine.requests import Controls
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.speculate import Step, speculate

COUNT = 18
PENALISED = Sampling(temperature=1.1, seed=31, repetition=1.3, presence=0.3)
SETTINGS = {
    "greedy": GREEDY,
    "warm": WARM,
    "penalised": Sampling(temperature=1.1, seed=31, repetition=1.3, presence=0.3),
}


def steps_of(bench: Bench, kind: str, family: str, sampling: Sampling) -> list[Step]:
    backend, plan = bench.open(kind, bench.bundle(family)).backend, mixed(31, [sampling])
    prefilled(backend, prompt_of(18, seed=31))
    return list(speculate(backend, 18, lambda: Controls(*next(plan)), keep_all, COUNT))


@pytest.mark.parametrize("name", SETTINGS)
def test_backends_agree(bench: Bench, family: str, name: str) -> None:
    for module in (module for modules in NEEDS.values() for module in modules):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    ours, theirs = (steps_of(bench, kind, family, SETTINGS[name]) for kind in NEEDS)
    assert [step.tokens for step in ours] == [step.tokens for step in theirs]
    for a, b in zip(ours, theirs, strict=True):
        assert a.verdict.drafted == b.verdict.drafted
        assert a.verdict.draft_p == pytest.approx(b.verdict.draft_p, abs=NEAR)
        assert a.verdict.target_p == pytest.approx(b.verdict.target_p, abs=NEAR)
        assert a.verdict.chosen_p == pytest.approx(b.verdict.chosen_p, abs=NEAR)
