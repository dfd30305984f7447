"""The device's noise, filters and verdict against the plain-Python choice rule."""

from __future__ import annotations

import math
import random

import pytest
import torch

from eagle3chat.engine.sampling import Sampling, choose, filtered, gumbel_row, noise_bits, noise_key, softmax
from eagle3chat.engine.torch_choice import RUNNERS_UP, judge, largest, nucleus, read, winner
from eagle3chat.engine.torch_choice import filtered as filtered_rows
from eagle3chat.engine.torch_noise import Noise

CPU = torch.device("cpu")
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


def rows_with_ties(count: int, width: int, seed: int) -> torch.Tensor:
    """Logits on a coarse grid, so that many are equal."""
    rng = random.Random(seed)
    return torch.tensor([[round(rng.gauss(0.0, 2.0) * 4.0) / 4.0 for _ in range(width)] for _ in range(count)])


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, 2**63, 2**64 - 1])
def test_noise_has_the_same_bits(seed: int) -> None:
    size, positions = 5003, [0, 1, 77, 131071]
    bits = Noise(size, CPU).bits(seed, positions)
    assert bits.shape == (4, size)
    for row, position in zip(bits.tolist(), positions, strict=True):
        key = noise_key(seed, position)
        assert [b & 0xFFFFFFFF for b in row] == [noise_bits(key, i) for i in range(size)]


def test_noise_has_the_same_values() -> None:
    noise = Noise(3000, CPU).gumbel(11, [5, 6])
    for row, position in zip(noise, (5, 6), strict=True):
        wanted = torch.tensor(gumbel_row(11, position, 3000), dtype=torch.float64)
        torch.testing.assert_close(row.double(), wanted, atol=2e-5, rtol=1e-6)


def test_noise_is_finite_at_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = Noise(4, CPU)
    ends = torch.tensor([[0, -1, 2**31 - 1, -(2**31)]], dtype=torch.int32)  # as words: 0, all ones, and the middle
    monkeypatch.setattr(noise, "bits", lambda seed, positions: ends)
    values = noise.gumbel_plainly(0, [0])[0].tolist()
    wanted = [-math.log(-math.log1p(-min((h + 0.5) / 2.0**32, 1 - 2.0**-24))) for h in (0, 2**32 - 1, 2**31 - 1, 2**31)]
    assert values == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("sampling", SETTINGS)
@pytest.mark.parametrize("width", [8, 320, 2048])
def test_filters_keep_the_same_tokens(sampling: Sampling, width: int) -> None:
    logits = rows_with_ties(6, width, seed=width)
    scaled = filtered_rows(logits, sampling).tolist()
    for row, got in zip(logits.tolist(), scaled, strict=True):
        wanted = filtered(row, sampling)
        assert [x == -math.inf for x in got] == [x == -math.inf for x in wanted]
        assert got == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("spread", [0.1, 1.0, 6.0])
def test_the_nucleus_is_that_of_a_full_sort(top_p: float, spread: float) -> None:
    p = (torch.randn(3, 5000, generator=torch.Generator().manual_seed(1)) * spread).softmax(-1)
    for row, least in zip(p, nucleus(p, top_p), strict=True):
        ordered = row.double().sort(descending=True).values
        mass = ordered.cumsum(-1)
        assert least.item() == ordered[(mass < top_p).sum()].item()


@pytest.mark.parametrize("sampling", SETTINGS)
def test_a_row_alone_says_what_it_says_among_others(sampling: Sampling) -> None:
    logits = torch.randn(5, 4096, generator=torch.Generator().manual_seed(1)) * 3.0
    noise = Noise(4096, CPU).gumbel(sampling.seed, range(9, 14)) if sampling.temperature else None
    drafted = torch.arange(5)
    together = judge(logits, noise, drafted, sampling)
    for i in range(5):
        alone = judge(logits[i : i + 1], noise if noise is None else noise[i : i + 1], drafted[i : i + 1], sampling)
        assert torch.equal(alone[0], together[i])


@pytest.mark.parametrize("sampling", SETTINGS)
@pytest.mark.parametrize("ties", [False, True])
def test_verdicts_follow_the_choice_rule(sampling: Sampling, ties: bool) -> None:
    width = 640
    logits = rows_with_ties(4, width, 3) if ties else torch.randn(4, width, generator=torch.Generator().manual_seed(2))
    noise = Noise(width, CPU).gumbel(sampling.seed, range(20, 24)) if sampling.temperature else None
    drafted = torch.tensor([1, 0, width - 1, 5])
    lines = judge(logits, noise, drafted, sampling).tolist()
    for i, row in enumerate(logits.tolist()):
        said = read(lines[i])
        shape = softmax(filtered(row, sampling))
        assert said.chosen == choose(row, 20 + i, sampling)
        assert said.chosen_p == pytest.approx(shape[said.chosen], abs=1e-6)
        assert said.target_p == pytest.approx(shape[drafted[i]], abs=1e-6)
        wanted = sorted((p for p in shape if p > 0.0), reverse=True)[:RUNNERS_UP]
        assert [p for _, p in said.runners_up] == pytest.approx(wanted, abs=1e-6)
        assert [shape[t] for t, _ in said.runners_up] == pytest.approx(wanted, abs=1e-6)
        values = filtered(row, sampling)
        if sampling.temperature:
            values = [x + g for x, g in zip(values, gumbel_row(sampling.seed, 20 + i, width), strict=True)]
        best, second = sorted(values)[:-3:-1]
        assert said.margin == pytest.approx(best - second, abs=1e-4)


@pytest.mark.parametrize("width", [5, 512, 2048, 49152, 50000])
def test_largest_are_the_largest(width: int) -> None:
    x = torch.randn(3, width, generator=torch.Generator().manual_seed(width))
    x[:, width // 2 :] = -torch.inf
    values, places = largest(x, 4)
    expected = x.sort(-1, descending=True).values[:, :4]
    assert torch.equal(values, expected)
    assert torch.equal(x.gather(-1, places), expected)


@pytest.mark.parametrize("width", [5, 512, 49152, 50000])
def test_the_first_of_equal_maxima_wins(width: int) -> None:
    x = torch.zeros(4, width)
    x[1, 3], x[2, [width // 2, width - 1]], x[3, -1] = 2.0, 1.0, 5.0
    best, place = winner(x)
    assert place[:, 0].tolist() == [0, 3, width // 2, width - 1]
    assert best[:, 0].tolist() == [0.0, 2.0, 1.0, 5.0]
