"""The chain that finds its own length: on simulated machines and drafts, against every fixed length."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import pytest

from eagle3chat.engine.chain import Chain
from eagle3chat.engine.plan import Seen

Cost = Callable[[int], float]


def cheap(chain: int) -> float:
    """Seconds of a round where more rows cost little."""
    return 1.0 + (0.1 if chain else 0.0) + 0.05 * chain


def dear(chain: int) -> float:
    """Where each row costs nearly as much as a round."""
    return 1.0 + 0.8 * chain


def simulate(
    choose: Callable[[], int],
    acceptance: Sequence[float],
    cost: Cost,
    tokens: int,
    told: Chain | None = None,
    seed: int = 0,
) -> float:
    """Tokens a second."""
    rng = random.Random(seed)
    done, seconds = 0, 0.0
    while done < tokens:
        chain = choose()
        accepted = 0
        while accepted < chain and rng.random() < acceptance[accepted]:
            accepted += 1
        spent = cost(chain) * rng.uniform(0.95, 1.1)
        if told is not None:
            told.saw(Seen((0.5,) * chain, accepted, min(chain, accepted + 1), spent, 0.0))
        done, seconds = done + accepted + 1, seconds + spent
    return done / seconds


def found(chain: Chain, acceptance: Sequence[float], cost: Cost, tokens: int = 4000) -> float:
    return simulate(lambda: chain.plan(sampled=False).chain, acceptance, cost, tokens, chain)


@pytest.mark.parametrize("cost", [cheap, dear], ids=["cheap", "dear"])
@pytest.mark.parametrize("acceptance", [[0.9] * 8, [0.7] * 8, [0.5, 0.4, 0.3, 0.2, 0.1, 0.1, 0.1, 0.1], [0.05] * 8])
def test_as_good_as_the_best_fixed_length(acceptance: list[float], cost: Cost) -> None:
    fixed = [simulate(lambda k=k: k, acceptance, cost, 4000) for k in range(9)]  # type: ignore[misc]
    got = found(Chain(8), acceptance, cost)
    assert got > 0.95 * max(fixed), (got, fixed)


def test_a_draft_that_never_agrees_costs_little() -> None:
    plain = simulate(lambda: 0, [], cheap, 400)
    chain = Chain(5)
    assert found(chain, [0.0] * 5, cheap, 400) > 0.96 * plain
    assert chain.best == 0
    assert found(chain, [0.0] * 5, cheap, 2000) > 0.985 * plain  # it is asked ever more rarely


def test_a_draft_that_wakes_up_is_noticed() -> None:
    chain = Chain(4)
    found(chain, [0.0] * 4, cheap, 400)
    assert chain.best == 0
    found(chain, [0.9] * 4, cheap, 1500)
    assert chain.best >= 3


def test_a_machine_that_slows_down_is_noticed() -> None:
    chain = Chain(6)
    found(chain, [0.8] * 6, cheap, 1000)
    assert chain.best >= 4
    found(chain, [0.8] * 6, lambda k: 10.0 * dear(k), 3000)
    assert chain.best <= 1


@pytest.mark.parametrize("longest", [0, 1, 2])
def test_short_limits(longest: int) -> None:
    chain = Chain(longest)
    for _ in range(200):
        plan = chain.plan(sampled=False)
        assert 0 <= plan.chain <= longest and plan.why
        chain.saw(Seen((0.5,) * plan.chain, plan.chain, plan.chain, cheap(plan.chain), 0.0))
    assert chain.best == longest


def test_it_does_not_waver() -> None:
    """Lengths that are equally good are not changed for each other."""
    chain = Chain(3)
    acceptance = [0.5, 0.5, 0.5]
    worth = [1.0, 1.5, 1.75, 1.875]
    used = []
    rng = random.Random(1)
    for _ in range(600):
        plan = chain.plan(sampled=False)
        accepted = 0
        while accepted < plan.chain and rng.random() < acceptance[accepted]:
            accepted += 1
        spent = worth[plan.chain] * rng.uniform(0.99, 1.01)
        chain.saw(Seen((0.5,) * plan.chain, accepted, min(plan.chain, accepted + 1), spent, 0.0))
        used.append(chain.best)
    assert sum(a != b for a, b in itertools.pairwise(used)) < 60


def test_it_says_why() -> None:
    chain = Chain(3)
    assert chain.plan(sampled=False).why == "measuring"
    found(chain, [0.8] * 3, cheap, 100)
    assert "x plain" in chain.plan(sampled=False).why or "neighbour" in chain.plan(sampled=False).why
    asleep = Chain(3)
    found(asleep, [0.0] * 3, cheap, 100)
    assert asleep.plan(sampled=False).why in ("drafting costs more than it brings", "asking the draft again")
    assert Chain(0).plan(sampled=False).why == "there is no draft"
