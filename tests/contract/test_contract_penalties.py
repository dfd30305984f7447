"""Penalties on every backend: each verification row sees the committed text and the drafts before it."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from contract_game import GREEDY, WARM, Bench, mixed, play, prompt_of, text_of

PENALTIES = {
    "repetition": {"repetition": 1.4},
    "repetition below 1": {"repetition": 0.8},
    "presence": {"presence": 1.1},
    "frequency": {"frequency": 0.7},
    "all": {"repetition": 1.2, "presence": -0.4, "frequency": 0.5},
}


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_rounds_with_penalties(bench: Bench, kind: str, family: str, name: str) -> None:
    samplings = [dataclasses.replace(base, **PENALTIES[name]) for base in (GREEDY, WARM)]
    play(bench, kind, bench.bundle(family), prompt_of(15, seed=21), mixed(21, samplings), 30)


@pytest.mark.parametrize("name", PENALTIES)
def test_text_with_penalties_is_what_the_target_alone_writes(bench: Bench, kind: str, name: str) -> None:
    path, prompt, sampling = bench.bundle("llama"), prompt_of(15, seed=22), dataclasses.replace(WARM, **PENALTIES[name])
    plain = bench.plain(path, prompt, sampling, 30)
    for chains in ((3,), (0, 1, 5, 6)):
        assert text_of(bench.open(kind, path).backend, prompt, mixed(23, [sampling], chains), 30) == plain


def test_penalties_that_change_between_rounds(bench: Bench, kind: str) -> None:
    """What was committed without one counts once it is on."""
    samplings = [GREEDY, WARM, *(dataclasses.replace(GREEDY, **values) for values in PENALTIES.values())]
    plan = itertools.cycle(zip((3, 0, 5, 2, 4, 1, 6), samplings, strict=True))
    play(bench, kind, bench.bundle("llama"), prompt_of(11, seed=24), plan, 40)
