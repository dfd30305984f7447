"""Penalties in plain Python: the rule by hand, and speculation that changes no token under any of them."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
from toys import decode, ids

from eagle3chat.engine.errors import SettingError
from eagle3chat.engine.requests import Controls
from eagle3chat.engine.sampling import Before, Sampling, choose, filtered, penalised
from eagle3chat.engine.scripted import ScriptedBackend

V = 30  # enough that a reply leaves some out
HOT = tuple(i for i in range(V) if i % 4)
PROMPT = (1, 4, 7, 2, 7, 20)
PENALTIES = (
    {"repetition": 1.4},
    {"repetition": 0.7},
    {"presence": 1.1},
    {"presence": -0.6},
    {"frequency": 0.35},
    {"repetition": 1.2, "presence": 0.4, "frequency": 0.25},
)
DRAWS = (
    Sampling(),
    Sampling(temperature=0.8, seed=11),
    Sampling(temperature=1.2, top_k=5, top_p=0.9, min_p=0.05, seed=12),
)


@cache
def target(last: tuple[int, ...], place: int) -> list[float]:
    chance = random.Random(f"target {last} {place}")
    return [chance.gauss(0.5, 1.5) for _ in range(V)]


def target_of(context: Sequence[int]) -> list[float]:
    return target(tuple(context[-2:]), len(context) % 3)


def draft_of(context: Sequence[int]) -> list[float]:
    chance = random.Random(f"draft {tuple(context[-3:])}")
    full = target_of(context)
    return [full[i] + chance.gauss(0.0, 0.3) for i in HOT]


def backend() -> ScriptedBackend:
    return ScriptedBackend(target_of, draft_of, HOT, vocab_size=V)


def plain(sampling: Sampling, count: int) -> list[int]:
    """What the target alone writes after the prompt."""
    reply: list[int] = []
    for _ in range(count):
        context = [*PROMPT, *reply]
        reply.append(choose(target_of(context), len(context), sampling, Before(PROMPT, reply)))
    return reply


def name(value: object) -> str:
    return " ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else f"T{value.temperature}"


def with_penalties(sampling: Sampling, penalty: dict[str, float]) -> Sampling:
    return replace(sampling, **penalty)


def test_each_penalty_by_hand() -> None:
    logits = [2.0, -2.0, 3.0, -1.0, 4.0]
    before = Before(prompt=(0, 1), reply=(2, 3, 2))
    assert penalised(logits, Sampling(repetition=2.0), before) == [1.0, -4.0, 1.5, -2.0, 4.0]
    assert penalised(logits, Sampling(presence=0.5), before) == [2.0, -2.0, 2.5, -1.5, 4.0]
    assert penalised(logits, Sampling(frequency=0.5), before) == [2.0, -2.0, 2.0, -1.5, 4.0]
    together = Sampling(repetition=2.0, presence=0.5, frequency=0.25)
    assert penalised(logits, together, before) == [1.0, -4.0, 0.5, -2.75, 4.0]


def test_a_smaller_vocabulary_is_penalised_at_its_ids() -> None:
    before = Before(prompt=(9,), reply=(4, 4))
    assert penalised([1.0, 1.0, 1.0], Sampling(repetition=2.0), before, (4, 5, 9)) == [0.5, 1.0, 0.5]
    assert penalised([1.0, 1.0, 1.0], Sampling(frequency=1.0), before, (4, 5, 9)) == [-1.0, 1.0, 1.0]


def test_penalties_come_before_temperature_and_filters() -> None:
    logits, before = [4.0, 3.0, 2.0], Before(reply=(0, 0))
    sampling = Sampling(temperature=0.5, top_k=1, frequency=1.5)
    assert filtered(logits, sampling, before) == [-math.inf, 6.0, -math.inf]
    assert choose(logits, 3, Sampling(frequency=1.5), before) == 1
    assert choose(logits, 3, Sampling(frequency=1.5)) == 0


def test_without_penalties_the_tokens_before_change_nothing() -> None:
    logits = target_of(PROMPT)
    assert penalised(logits, Sampling(), Before(PROMPT, (3, 3))) == logits
    assert not Sampling().penalises
    assert all(with_penalties(Sampling(), penalty).penalises for penalty in PENALTIES)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"repetition": 0.0}, r"repetition penalty of 0\.0 .* Use above 0"),
        ({"repetition": -1.0}, "repetition penalty"),
        ({"repetition": math.inf}, "repetition penalty"),
        ({"repetition": math.nan}, "repetition penalty"),
        ({"presence": 2.1}, "presence penalty of 2.1 .* Use -2 to 2"),
        ({"frequency": -2.1}, "frequency penalty"),
        ({"frequency": math.nan}, "frequency penalty"),
    ],
)
def test_ranges(values: dict[str, float], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        Sampling(**values)


@pytest.mark.parametrize("penalty", PENALTIES, ids=name)
@pytest.mark.parametrize("draw", DRAWS, ids=name)
def test_every_chain_writes_what_the_target_alone_writes(draw: Sampling, penalty: dict[str, float]) -> None:
    sampling = with_penalties(draw, penalty)
    wanted = plain(sampling, 60)
    assert wanted != plain(draw, 60), "the penalty does something"
    for chain in (0, 1, 2, 3, 6):
        steps = decode(backend(), PROMPT, lambda chain=chain: Controls(chain, sampling), 60)
        assert ids(steps) == wanted
    chains = itertools.cycle((3, 0, 1, 6, 0, 0, 2, 5))
    assert ids(decode(backend(), PROMPT, lambda: Controls(next(chains), sampling), 60)) == wanted


def test_every_acceptance_count_occurs_under_penalties() -> None:
    sampling = Sampling(temperature=0.7, seed=5, repetition=1.2, presence=0.3, frequency=0.1)
    counts = Counter(step.accepted for step in decode(backend(), PROMPT, lambda: Controls(3, sampling), 300))
    assert set(counts) == {0, 1, 2, 3}, counts
