"""Noise, judging and picking: the numbers of their plain twins, whatever variant, threads and other rows."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from eagle3chat.engine.sampling import V_MAX, Sampling, noise_bits, noise_key
from eagle3chat.engine.torch_choice import judge_plainly
from eagle3chat.kernels import cpu, cpu_choice

pytestmark = pytest.mark.skipif(cpu.library() is None, reason="the kernels are not built here")
WIDTHS = (4, 5, 100, 128, 320, 8192, 12345)
ROWS = 3


@pytest.fixture(params=cpu.variants(), ids=lambda variant: variant.name.lower())
def variant(request: pytest.FixtureRequest) -> Iterator[cpu.Variant]:
    with cpu.forced(request.param, threads=2):
        yield request.param


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def keys(rows: int) -> list[tuple[int, int]]:
    return [noise_key(7, 100 + row) for row in range(rows)]


def near_noise(got: Tensor, width: int) -> None:
    """Within 1e-6 of float64's, from a v that is rounded to float32 as the kernels' is."""
    bits = torch.tensor([[noise_bits(key, token) for token in range(width)] for key in keys(len(got))])
    v = ((bits.double() + 0.5) / 2.0**32).float().clamp(max=V_MAX).double()
    torch.testing.assert_close(got, v.neg().log1p().neg().log().neg().float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("width", [1, 3, 64, 1000, 9000])
def test_noise(width: int, variant: cpu.Variant) -> None:
    got = cpu_choice.gumbel(keys(ROWS), width)
    near_noise(got, width)
    assert torch.equal(got[1:2], cpu_choice.gumbel(keys(2)[1:], width))
    with cpu.forced(variant, threads=1):
        assert torch.equal(got, cpu_choice.gumbel(keys(ROWS), width))


def test_noise_of_every_size(variant: cpu.Variant) -> None:
    """Both tails: over 400,000 draws the noise goes from about -2.6 to 13."""
    got = cpu_choice.gumbel(keys(2), 200_000)
    assert got.min() < -2.3 and got.max() > 11.0
    near_noise(got, 200_000)


def unmixed(word: int) -> int:
    """What the finaliser makes into `word`."""
    for factor, shift in ((0x846CA68B, 15), (0x7FEB352D, 16)):
        word = (word ^ (word >> 16)) if factor == 0x846CA68B else word
        word = word * pow(factor, -1, 2**32) % 2**32
        word ^= (word >> shift) ^ (word >> 30 if shift == 15 else 0)
    return word


@pytest.mark.parametrize("bits", [0, 1, 2**16, 2**31 - 1, 2**31, 2**32 - 2**9, 2**32 - 1])
def test_noise_at_both_ends(bits: int, variant: cpu.Variant) -> None:
    key = (0, unmixed(0) ^ unmixed(bits))  # of token 0
    assert noise_bits(key, 0) == bits
    v = min(float(torch.tensor((bits + 0.5) / 2.0**32, dtype=torch.float32)), V_MAX)
    got = cpu_choice.gumbel([key], 1).item()
    assert got == pytest.approx(-math.log(-math.log1p(-v)), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
def test_judging(width: int, temperature: float, variant: cpu.Variant) -> None:
    logits, sampling = normal(ROWS, width, seed=1) * 4.0, Sampling(temperature=temperature)
    noise = normal(ROWS, width, seed=2) if temperature else None
    drafted = torch.tensor([0, width - 1, width // 2])
    got = cpu_choice.judge(logits, noise, drafted, temperature or 1.0)
    wanted = judge_plainly(logits, noise, drafted, sampling)
    torch.testing.assert_close(got, wanted, rtol=2e-5, atol=2e-6)
    alone = [
        cpu_choice.judge(
            logits[i : i + 1], None if noise is None else noise[i : i + 1], drafted[i : i + 1], temperature or 1.0
        )
        for i in range(ROWS)
    ]
    assert torch.equal(got, torch.cat(alone))


def test_what_is_dropped_has_no_probability(variant: cpu.Variant) -> None:
    logits = torch.full((1, 20_000), -math.inf)
    logits[0, 15_000], logits[0, 17] = 1.0, 1.0 + math.log(3.0)
    got = cpu_choice.judge(logits, torch.zeros(1, 20_000), torch.tensor([5]), 1.0)[0]
    assert got[0] == 17 and got[3] == 0.0
    torch.testing.assert_close(got[[1, 2]], torch.tensor([0.75, math.log(3.0)]))
    assert got[4:6].tolist() == [17.0, 15_000.0]
    torch.testing.assert_close(got[8:], torch.tensor([0.75, 0.25, 0.0, 0.0]))


def test_the_first_of_equal_ones(variant: cpu.Variant) -> None:
    logits = torch.zeros(1, 9000)
    logits[0, [300, 301, 8500, 8999]] = 2.0
    got = cpu_choice.judge(logits, None, torch.tensor([300]), 1.0)[0]
    assert got[0] == 300 and got[2] == 0.0 and got[4:8].tolist() == [300.0, 301.0, 8500.0, 8999.0]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_picking(width: int, temperature: float, variant: cpu.Variant) -> None:
    logits, noise = normal(width, seed=3) * 3.0, normal(2 * width, seed=4)
    ids = torch.arange(width) * 2 + 1
    token, p = torch.zeros(1, dtype=torch.int64), torch.zeros(1)
    heard = noise.data_ptr() if temperature else None
    cpu_choice.pick(
        logits.data_ptr(), heard, ids.data_ptr(), width, temperature or 1.0, 0.5, token.data_ptr(), p.data_ptr()
    )
    scaled = logits / (temperature or 1.0)
    place = int((scaled / 0.5 + noise[ids] if temperature else scaled).argmax())
    assert token.item() == ids[place]
    torch.testing.assert_close(p[0], scaled.softmax(-1)[place], rtol=2e-5, atol=1e-6)
