"""MLX's noise, filters, penalties and verdict against the plain-Python choice rule."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from eagle3chat.engine import mlx_noise
from eagle3chat.engine.mlx_choice import RUNNERS_UP, judge, largest, nucleus, probabilities, read
from eagle3chat.engine.mlx_choice import filtered as filtered_rows
from eagle3chat.engine.mlx_noise import Noise
from eagle3chat.engine.mlx_penalty import Said
from eagle3chat.engine.mlx_penalty import penalised as penalised_rows
from eagle3chat.engine.sampling import (
    Before,
    Sampling,
    choose,
    filtered,
    gumbel_row,
    noise_bits,
    noise_key,
    penalised,
    softmax,
)

NEAR = 1e-5  # MLX's exponential on a CPU is right to 4e-6
SETTINGS = [
    Sampling(),
    Sampling(temperature=0.8, seed=1),
    Sampling(temperature=0.7, top_k=5, seed=2),
    Sampling(temperature=1.3, top_p=0.6, seed=3),
    Sampling(temperature=1.0, min_p=0.2, seed=4),
    Sampling(temperature=1.2, top_k=30, top_p=0.9, min_p=0.05, seed=5),
    Sampling(temperature=0.9, top_k=1, seed=6),
    Sampling(temperature=1.0, top_p=1e-6, seed=7),
    Sampling(temperature=1.0, top_k=3, top_p=0.999999, seed=8),
    Sampling(temperature=0.05, top_p=0.95, min_p=1.0, seed=9),
]


def rows_of(count: int, width: int, seed: int, ties: bool = True) -> list[list[float]]:
    """Logits that are float32 numbers; with ties on a coarse grid, so that many are equal."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((count, width)) * 2.0
    return (np.round(values * 4.0) / 4.0 if ties else values).astype(np.float32).tolist()


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, 2**63, 2**64 - 1])
def test_noise_has_the_same_bits(seed: int) -> None:
    size, positions = 5003, [0, 1, 77, 131071]
    bits = Noise(size).bits(seed, positions)
    assert bits.dtype == mx.uint32 and bits.shape == (4, size)
    for row, position in zip(bits.tolist(), positions, strict=True):
        key = noise_key(seed, position)
        assert row == [noise_bits(key, i) for i in range(size)]


def test_noise_has_the_same_values() -> None:
    noise = Noise(3000).gumbel(11, [5, 6])
    assert noise.dtype == mx.float32
    for row, position in zip(noise.tolist(), (5, 6), strict=True):
        assert row == pytest.approx(gumbel_row(11, position, 3000), abs=2e-5, rel=1e-6)


def test_noise_can_be_fused() -> None:
    """Traced, as on a GPU; not evaluated, for here that would start a compiler."""
    noise = Noise(3000, fused=True)
    for rows in (1, 3, 1):
        traced = noise.gumbel(11, range(rows))
        assert traced.shape == (rows, 3000) and traced.dtype == mx.float32


def test_noise_is_finite_at_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    words = (0, 2**32 - 1, 2**31 - 1, 2**31)
    monkeypatch.setattr(mlx_noise, "_bits", lambda steps, keys: mx.array([words], dtype=mx.uint32))
    wanted = [-math.log(-math.log1p(-min((h + 0.5) / 2.0**32, 1 - 2.0**-24))) for h in words]
    assert Noise(4).gumbel(0, [0])[0].tolist() == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("sampling", SETTINGS)
@pytest.mark.parametrize("width", [8, 320, 2048])
def test_filters_keep_the_same_tokens(sampling: Sampling, width: int) -> None:
    logits = rows_of(6, width, seed=width)
    scaled = filtered_rows(mx.array(logits), sampling).tolist()
    for row, got in zip(logits, scaled, strict=True):
        wanted = filtered(row, sampling)
        assert [x == -math.inf for x in got] == [x == -math.inf for x in wanted]
        assert got == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("spread", [0.1, 1.0, 6.0])
def test_the_nucleus_is_that_of_a_sum_in_float64(top_p: float, spread: float) -> None:
    rng = np.random.default_rng(1)
    p = mx.softmax(mx.array((rng.standard_normal((3, 50000)) * spread).astype(np.float32)), axis=-1)
    for row, least in zip(np.array(p), nucleus(p, top_p).tolist(), strict=True):
        ordered = np.sort(row.astype(np.float64))[::-1]
        assert least[0] == ordered[(ordered.cumsum() < top_p).sum()]


@pytest.mark.parametrize("width", [49152, 50000, 640])
def test_probabilities_lose_no_small_terms(width: int) -> None:
    """One token has most of the mass, and the others together a thousandth of it, or nothing."""
    for rest in (math.log(1e-3 / width), -math.inf):
        x = np.full((2, width), rest, np.float32)
        x[0, 7] = x[1, width - 1] = 0.0
        wanted = np.exp(x.astype(np.float64)) / np.exp(x.astype(np.float64)).sum(-1, keepdims=True)
        p = np.array(probabilities(mx.array(x)))
        assert np.abs(p - wanted).max() < 5 * NEAR


@pytest.mark.parametrize("sampling", SETTINGS)
def test_a_row_alone_says_what_it_says_among_others(sampling: Sampling) -> None:
    logits = mx.array(rows_of(5, 4096, 1, ties=False))
    noise = Noise(4096).gumbel(sampling.seed, range(9, 14)) if sampling.temperature else None
    drafted = mx.arange(5)
    together = judge(logits, noise, drafted, sampling)
    for i in range(5):
        one = slice(i, i + 1)
        alone = judge(logits[one], noise if noise is None else noise[one], drafted[one], sampling)
        assert mx.array_equal(alone[0], together[i])


@pytest.mark.parametrize("sampling", SETTINGS)
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("width", [640, 333])
def test_verdicts_follow_the_choice_rule(sampling: Sampling, ties: bool, width: int) -> None:
    logits = rows_of(4, width, 3, ties)
    noise = Noise(width).gumbel(sampling.seed, range(20, 24)) if sampling.temperature else None
    drafted = [1, 0, width - 1, 5]
    lines = judge(mx.array(logits), noise, mx.array(drafted), sampling).tolist()
    for i, row in enumerate(logits):
        said = read(lines[i])
        values = filtered(row, sampling)
        shape = softmax(values)
        assert said.chosen == choose(row, 20 + i, sampling)
        assert said.chosen_p == pytest.approx(shape[said.chosen], abs=NEAR)
        assert said.target_p == pytest.approx(shape[drafted[i]], abs=NEAR)
        wanted = sorted((p for p in shape if p > 0.0), reverse=True)[:RUNNERS_UP]
        assert [p for _, p in said.runners_up] == pytest.approx(wanted, abs=NEAR)
        assert [shape[t] for t, _ in said.runners_up] == pytest.approx(wanted, abs=NEAR)
        assert len({t for t, _ in said.runners_up}) == len(wanted)
        if sampling.temperature:
            values = [x + g for x, g in zip(values, gumbel_row(sampling.seed, 20 + i, width), strict=True)]
        best, second = sorted(values)[:-3:-1]
        assert said.margin == pytest.approx(best - second, abs=1e-4)


@pytest.mark.parametrize("width", [5, 512, 2048, 50000])
def test_largest_are_the_largest(width: int) -> None:
    x = np.random.default_rng(width).standard_normal((3, width)).astype(np.float32)
    x[:, width // 2 :] = -np.inf
    values, places = largest(mx.array(x), 4)
    wanted = np.sort(x, axis=-1)[:, ::-1][:, :4]
    assert np.array_equal(np.array(values), wanted)
    assert np.array_equal(np.take_along_axis(x, np.array(places).astype(np.int64), -1), wanted)


@pytest.mark.parametrize("width", [5, 512, 50000])
def test_the_first_of_equal_maxima_wins(width: int) -> None:
    x = np.zeros((4, width), np.float32)
    x[1, 3], x[2, [width // 2, width - 1]], x[3, -1] = 2.0, 1.0, 5.0
    said = judge(mx.array(x), None, mx.zeros(4, mx.int32), Sampling()).tolist()
    assert [int(row[0]) for row in said] == [0, 3, width // 2, width - 1]


PENALTIES = [
    {"repetition": 1.4},
    {"repetition": 0.7},
    {"presence": 1.1},
    {"frequency": 0.35},
    {"repetition": 1.2, "presence": -0.4, "frequency": 0.25},
]


@pytest.mark.parametrize("penalty", PENALTIES, ids=str)
def test_penalties_see_what_stands_before_each_row(penalty: dict[str, float]) -> None:
    width, rng = 40, random.Random(4)
    sampling = replace(Sampling(), **penalty)
    prompt, reply, drafted = ([rng.randrange(width) for _ in range(n)] for n in (9, 7, 3))
    said = Said(width)
    said.begin(prompt)
    said.add(reply[:3])
    said.counts(sampling)
    said.add(reply[3:])
    logits = rows_of(4, width, 6, ties=False)
    for _ in range(2):  # what was drafted leaves no trace
        rows = said.counts(sampling).rows(mx.array(drafted))
        got = penalised_rows(mx.array(logits), rows, sampling).tolist()
        for i, row in enumerate(logits):
            assert got[i] == pytest.approx(penalised(row, sampling, Before(prompt, reply + drafted[:i])), abs=1e-5)
    ids = [3, 7, 8, 30]
    mine = said.counts(sampling).at(mx.array(ids)).add(mx.array([2]))
    row = [0.5, -0.5, 1.0, 2.0]
    wanted = penalised(row, sampling, Before(prompt, [*reply, 8]), ids)
    assert penalised_rows(mx.array([row]), mine, sampling)[0].tolist() == pytest.approx(wanted, abs=1e-5)
    assert said.counts(Sampling(temperature=1.0)) is None
    said.begin([1])
    assert penalised_rows(mx.array([[1.0] * width]), said.counts(sampling), sampling)[0, 2].item() == 1.0
