"""The loop is lossless, cuts before it commits, and ends where it must."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence

import pytest
from toys import HOT, V, decode, ids, keep_all, plain, toy_backend, toy_target

from eagle3chat.engine import speculate as loop
from eagle3chat.engine.backend import Verdict
from eagle3chat.engine.requests import Controls
from eagle3chat.engine.sampling import Sampling, filtered, softmax
from eagle3chat.engine.scripted import ScriptedBackend
from eagle3chat.engine.speculate import agreed, speculate

PROMPT = (1, 4, 7, 2)
SETTINGS = (
    Sampling(),
    Sampling(temperature=0.8, seed=11),
    Sampling(temperature=1.2, top_p=0.95, seed=12),
    Sampling(temperature=1.0, top_k=3, seed=13),
    Sampling(temperature=1.5, min_p=0.1, seed=14, sharpness=1.0),
)


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
@pytest.mark.parametrize("chain", range(7))
def test_every_chain_writes_what_the_target_alone_writes(chain: int, sampling: Sampling) -> None:
    steps = decode(toy_backend(), PROMPT, lambda: Controls(chain, sampling), 60)
    assert ids(steps) == plain(PROMPT, sampling, 60)


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_a_chain_that_changes_every_round_changes_nothing(sampling: Sampling) -> None:
    chains = itertools.cycle((3, 0, 1, 6, 0, 0, 2, 5))
    steps = decode(toy_backend(), PROMPT, lambda: Controls(next(chains), sampling), 80)
    assert ids(steps) == plain(PROMPT, sampling, 80)
    assert {len(step.verdict.drafted) for step in steps} >= {0, 1, 2, 3, 5, 6}


def test_every_acceptance_count_occurs() -> None:
    steps = decode(toy_backend(), PROMPT, lambda: Controls(3, Sampling(temperature=0.7, seed=5)), 300)
    counts = Counter(step.accepted for step in steps)
    assert set(counts) == {0, 1, 2, 3}, counts


def test_a_step_tells_what_was_committed() -> None:
    backend = toy_backend()
    for _ in backend.prefill(PROMPT, 0):
        pass
    position, text = len(PROMPT), list(PROMPT)
    for step in speculate(backend, len(PROMPT), lambda: Controls(3, Sampling()), keep_all, 40):
        assert step.position == position
        text += step.tokens
        position += len(step.tokens)
        assert list(backend.cached) == text[:-1], "commit comes before the step is told"
        assert step.own == (len(step.tokens) == step.accepted + 1)
        assert step.tokens[: step.accepted] == step.verdict.drafted[: step.accepted]
    assert step.finish == "length"


@pytest.mark.parametrize("place", range(1, 9))
def test_a_stop_at_every_place_of_a_round_cuts_before_commit(place: int) -> None:
    seen = 0

    def cut(offered: tuple[int, ...]) -> tuple[int, bool]:
        nonlocal seen
        if seen + len(offered) >= place:
            return place - seen, True
        seen += len(offered)
        return len(offered), False

    backend = ScriptedBackend(
        toy_target, lambda context: [toy_target(context)[i] for i in range(V)], range(V), vocab_size=V
    )
    steps = decode(backend, PROMPT, lambda: Controls(4, Sampling()), 100, cut)
    expected = plain(PROMPT, Sampling(), place)
    assert ids(steps) == expected
    assert steps[-1].finish == "stop"
    assert list(backend.cached) == [*PROMPT, *expected][:-1]
    assert not steps[-1].own or len(steps[-1].tokens) == 5


@pytest.mark.parametrize("limit", range(1, 8))
def test_the_limit_is_met_exactly(limit: int) -> None:
    steps = decode(toy_backend(), PROMPT, lambda: Controls(3, Sampling()), limit)
    assert ids(steps) == plain(PROMPT, Sampling(), limit)
    assert steps[-1].finish == "length"
    assert all(step.finish is None for step in steps[:-1])


@pytest.mark.parametrize("chain", [0, 1, 3, 6])
@pytest.mark.parametrize("capacity", range(5, 14))
def test_the_context_is_filled_to_its_last_position(capacity: int, chain: int) -> None:
    # ScriptedBackend.verify asserts that no row lies past the caches.
    steps = decode(toy_backend(capacity=capacity), PROMPT, lambda: Controls(chain, Sampling()), 1000)
    assert steps[-1].finish == "context"
    assert ids(steps) == plain(PROMPT, Sampling(), capacity + 1 - len(PROMPT))


def test_a_prompt_of_one_token_decodes() -> None:
    steps = decode(toy_backend(), PROMPT[:1], lambda: Controls(3, Sampling()), 20)
    assert ids(steps) == plain(PROMPT[:1], Sampling(), 20)
    assert steps[0].verdict.drafted == ()


def test_the_same_seed_gives_the_same_text_and_another_seed_another() -> None:
    def text(seed: int) -> list[int]:
        return ids(decode(toy_backend(), PROMPT, lambda: Controls(3, Sampling(temperature=1.0, seed=seed)), 60))

    assert text(1) == text(1)
    assert text(1) != text(2)


# ---- the distribution is the target's ------------------------------------------------------------------

DRAWS = 20_000
FILTERS = {
    "none": {},
    "top-k": {"top_k": 3},
    "top-p": {"top_p": 0.8},
    "min-p": {"min_p": 0.12},
}
CHI2_999 = (0.0, 10.83, 13.82, 16.27, 18.47, 20.52, 22.46, 24.32, 26.12, 27.88, 29.59, 31.26)  # by degrees of freedom


class Memoryless(ScriptedBackend):
    """A pair whose distribution does not depend on the text, so that all tokens of a long reply are draws."""

    def __init__(self) -> None:
        chance = random.Random(9)
        row = tuple(chance.gauss(0.0, 1.3) for _ in range(V))
        guess = tuple(row[i] + chance.gauss(0.0, 0.8) for i in HOT)
        positions = DRAWS + 64
        super().__init__(
            lambda context: row, lambda context: guess, HOT, vocab_size=V, capacity=positions, memory=positions
        )
        self.row, self.guess = row, guess


@pytest.fixture(scope="module")
def memoryless() -> Memoryless:
    """Shared, so that the noise of a position is worked out once."""
    return Memoryless()


def draws(backend: Memoryless, chain: int, sampling: Sampling, count: int) -> list[int]:
    return ids(decode(backend, (1,), lambda: Controls(chain, sampling), count))


def chi_square(counts: Sequence[int], p: Sequence[float]) -> tuple[float, float]:
    """The statistic, and its 99.9 % quantile. Cells under 5 expected are joined."""
    total = sum(counts)
    assert all(n == 0 for n, q in zip(counts, p, strict=True) if q == 0.0), "drawn though filtered out"
    cells = sorted((q * total, n) for n, q in zip(counts, p, strict=True) if q > 0.0)
    while len(cells) > 1 and cells[0][0] < 5.0:
        first, second = cells[0], cells[1]
        cells = sorted([(first[0] + second[0], first[1] + second[1]), *cells[2:]])
    if len(cells) == 1:
        return 0.0, 1.0
    return sum((n - e) ** 2 / e for e, n in cells), CHI2_999[len(cells) - 1]


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.5])
def test_the_distribution_is_the_targets(memoryless: Memoryless, temperature: float, name: str) -> None:
    sampling = Sampling(temperature=temperature, seed=2026, **FILTERS[name])
    expected = softmax(filtered(memoryless.row, sampling))
    for chain in (0, 1, 2, 4):
        counts = Counter(draws(memoryless, chain, sampling, DRAWS))
        statistic, bound = chi_square([counts[i] for i in range(V)], expected)
        assert statistic < bound, chain


def test_planted_wrong_rules_fail_the_same_test(memoryless: Memoryless, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taking the draft's word whenever the target gives it some mass: the mistake of judging leniently."""

    def lenient(verdict: Verdict) -> int:
        return next((i for i, p in enumerate(verdict.target_p) if p < 0.1), len(verdict.drafted))

    sampling = Sampling(temperature=1.0, seed=2026)
    for rule, legal in ((agreed, True), (lenient, False)):
        monkeypatch.setattr(loop, "agreed", rule)
        counts = Counter(draws(memoryless, 2, sampling, DRAWS))
        statistic, bound = chi_square([counts[i] for i in range(V)], softmax(filtered(memoryless.row, sampling)))
        assert (statistic < bound) == legal, (rule, statistic, bound)


def test_a_noise_that_ignores_the_position_fails_the_same_test(monkeypatch: pytest.MonkeyPatch) -> None:
    from eagle3chat.engine import sampling as rule

    backend = Memoryless()
    monkeypatch.setattr(rule, "noise_key", lambda seed, position: (seed & 0xFFFFFFFF, 77))
    sampling = Sampling(temperature=1.0, seed=2026)
    counts = Counter(draws(backend, 0, sampling, 2000))
    statistic, bound = chi_square([counts[i] for i in range(V)], softmax(filtered(backend.row, sampling)))
    assert statistic > bound


def test_the_draft_is_worth_its_name(memoryless: Memoryless) -> None:
    """Acceptance with shared noise lies near the overlap of both distributions, far above independent draws."""
    sampling = Sampling(temperature=1.0, seed=4, sharpness=1.0)
    steps = decode(memoryless, (1,), lambda: Controls(1, sampling), 8000)
    rate = sum(step.accepted for step in steps if step.verdict.drafted) / sum(len(s.verdict.drafted) for s in steps)
    p = softmax(memoryless.row)
    q = dict(zip(HOT, softmax(memoryless.guess), strict=True))
    overlap = sum(min(p[i], q.get(i, 0.0)) for i in range(V))
    independent = sum(p[i] * q.get(i, 0.0) for i in range(V))
    assert overlap - 0.2 < rate <= 1.0
    assert rate > 1.6 * independent
