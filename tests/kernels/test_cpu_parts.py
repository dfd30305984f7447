"""Norms, residual sums and gates: the numbers of their plain twins, and a row's bits whatever stands beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from eagle3chat.kernels import cpu
from eagle3chat.kernels.cpu_parts import Gate, RowNorm
from eagle3chat.kernels.twin_parts import PlainGate, PlainRowNorm

pytestmark = pytest.mark.skipif(cpu.library() is None, reason="the kernels are not built here")
WIDTHS = (1, 7, 16, 64, 67, 96, 576, 1000, 2048)
DTYPES = (torch.bfloat16, torch.float32)


@pytest.fixture(params=cpu.variants(), ids=lambda variant: variant.name.lower())
def variant(request: pytest.FixtureRequest) -> Iterator[cpu.Variant]:
    with cpu.forced(request.param, threads=1):
        yield request.param


def normal(*shape: int, seed: int = 0, spread: float = 1.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * spread


def near(got: Tensor, wanted: Tensor) -> None:
    """One rounding to bfloat16 apart at most, or the errors of float32 sums."""
    loose = {"rtol": 2**-7, "atol": 1e-6} if got.dtype == torch.bfloat16 else {"rtol": 3e-6, "atol": 1e-6}
    torch.testing.assert_close(got, wanted, **loose)


def same_by_row(call: Callable[..., Tensor], *rows: Tensor) -> None:
    together = call(*rows)
    apart = [call(*(x[i : i + 1].clone() for x in rows)) for i in range(len(together))]
    assert torch.equal(together, torch.cat(apart))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_norm(width: int, dtype: torch.dtype, variant: cpu.Variant) -> None:
    weight = normal(width, seed=5) + 1.0
    norm, plain = RowNorm(weight, 1e-3, dtype), PlainRowNorm(weight, 1e-3, dtype)
    for rows, spread in ((1, 1.0), (2, 1e-3), (5, 300.0), (16, 1.0)):
        x, y = (normal(rows, width, seed=seed, spread=spread).to(dtype) for seed in (1, 2))
        near(norm(x), plain(x))
        same_by_row(norm, x)
        (total, out), (wanted_total, wanted) = norm.add(x, y), plain.add(x, y)
        assert torch.equal(total, wanted_total)
        near(out, wanted)
        same_by_row(lambda *pair: torch.cat(norm.add(*pair), 1), x, y)


def test_the_sum_may_be_an_operand(variant: cpu.Variant) -> None:
    norm = RowNorm(torch.ones(70), 1e-5, torch.bfloat16)
    x, y = (normal(3, 70, seed=seed).bfloat16() for seed in (1, 2))
    total, out = norm.add(x, y)
    again = torch.empty_like(out)
    norm.run_add(x.data_ptr(), y.data_ptr(), x.data_ptr(), again.data_ptr(), 3)
    assert torch.equal(x, total) and torch.equal(again, out)


def test_norm_in_parts_has_the_same_bits(variant: cpu.Variant) -> None:
    norm = RowNorm(normal(1000) + 1.0, 1e-5, torch.bfloat16)
    x = normal(101, 1000).bfloat16()
    alone, added = norm(x), norm.add(x, x)[1]
    same_by_row(norm, x)
    with cpu.forced(variant, threads=3):
        assert torch.equal(norm(x), alone)
        assert torch.equal(norm.add(x, x)[1], added)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gate(width: int, activation: str, dtype: torch.dtype, variant: cpu.Variant) -> None:
    gate, plain = Gate(width, activation, dtype), PlainGate(width, activation, dtype)
    for rows in (1, 3, 16):
        x = normal(rows, 2 * width, seed=rows, spread=3.0).to(dtype)
        near(gate(x), plain(x))
        same_by_row(gate, x)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gate_of_extremes(activation: str, variant: cpu.Variant) -> None:
    values = torch.tensor([-1e4, -200.0, -90.0, -30.0, -1e-6, 0.0, 1e-6, 30.0, 90.0, 200.0, 1e4])
    x = torch.cat((values, torch.full_like(values, 2.0)))[None]
    got = Gate(len(values), activation, torch.float32)(x)
    torch.testing.assert_close(got, PlainGate(len(values), activation, torch.float32)(x), rtol=1e-5, atol=1e-6)


def test_gate_in_parts_has_the_same_bits(variant: cpu.Variant) -> None:
    gate = Gate(3000, "silu", torch.bfloat16)
    x = normal(6, 6000).bfloat16()
    alone = gate(x)
    same_by_row(gate, x)  # a row alone is not split
    with cpu.forced(variant, threads=3):
        assert torch.equal(gate(x), alone)


def test_what_is_no_number_stays_so(variant: cpu.Variant) -> None:
    for dtype in DTYPES:
        x = torch.ones(2, 64, dtype=dtype)
        x[1, 3] = torch.nan
        out = RowNorm(torch.ones(64), 1e-5, dtype)(x)
        assert out[0].isfinite().all() and out[1].isnan().all()
        gated = Gate(32, "silu", dtype)(x)
        assert gated.isnan().nonzero().tolist() == [[1, 3]]
