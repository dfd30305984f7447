"""The quantised linear against its plain twin, in every variant that this CPU has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from eagle3chat.kernels import cpu
from eagle3chat.kernels.cpu_linear import CpuLinear, eight_bit, four_bit, twin

pytestmark = pytest.mark.skipif(cpu.library() is None, reason="the kernels are not built here")

SIZES = ((1, 32), (17, 64), (33, 128), (200, 576), (48, 1536))  # N, K; the fourth is large enough for two threads
CASES = [(bits, group) for bits in (4, 8) for group in (32, 64, 128)]


@dataclass(frozen=True)
class Weight:
    """What a CpuLinear is made of."""

    codes: Tensor
    scales: Tensor
    biases: Tensor
    group: int
    bits: int

    def linear(self, **more: object) -> CpuLinear:
        return CpuLinear(self.codes, self.scales, self.biases, group=self.group, bits=self.bits, **more)

    def twin(self, x: Tensor) -> Tensor:
        return twin(x, self.codes, self.scales, self.biases, group=self.group)

    def size(self, x: Tensor) -> Tensor:
        """The sum of the sizes of all terms: what rounding errors are relative to."""
        return twin(x.abs(), self.codes, self.scales.abs(), self.biases.abs(), group=self.group)


def weight(
    n: int, k: int, group: int, bits: int, dtype: torch.dtype = torch.float16, zero: int | None = None
) -> Weight:
    """Random codes, scales of both signs, offsets of their own or those of one zero point."""
    seeded = torch.Generator().manual_seed(n + k + group + bits)
    codes = torch.randint(0, 2**bits, (n, k), generator=seeded).to(torch.uint8)
    scales = (torch.randn(n, k // group, generator=seeded) / 64).to(dtype)
    free = (torch.randn(n, k // group, generator=seeded) / 8).to(dtype)
    return Weight(codes, scales, free if zero is None else scales.float() * -zero, group, bits)


def inputs(m: int, k: int) -> Tensor:
    return torch.randn(m, k, generator=torch.Generator().manual_seed(k)).to(torch.bfloat16)


@pytest.fixture(params=cpu.variants(), ids=lambda variant: variant.name.lower())
def variant(request: pytest.FixtureRequest) -> Iterator[cpu.Variant]:
    with cpu.forced(request.param, threads=2):
        yield request.param


def check(w: Weight, x: Tensor) -> None:
    error = (w.linear(wide=True)(x).double() - w.twin(x)).abs()
    assert (error <= 3e-7 * w.size(x)).all(), (w.codes.shape, w.group, w.bits, error.max())


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize(("bits", "group"), CASES)
def test_all_rows_and_sizes_agree_with_the_twin(bits: int, group: int) -> None:
    for n, k in SIZES:
        if k % group == 0:
            for zero in (None, 2 ** (bits - 1)):
                w = weight(n, k, group, bits, zero=zero)
                for m in (*range(1, 9), 13, 70):
                    check(w, inputs(m, k))


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_parameters_of_any_type_are_taken_as_they_are(dtype: torch.dtype) -> None:
    w = weight(40, 128, 32, 4, dtype)
    w.scales[0, 0], w.biases[0, 0] = 6e-8, 0.0  # the smallest float16, roughly, is none of the others' tidy numbers
    check(w, inputs(3, 128))
    wide = 4 if dtype == torch.float32 else 2
    assert w.linear().nbytes == 48 * 128 // 2 + 48 * 4 * 2 * wide  # 16 outputs to a tile


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("bits", [4, 8])
def test_a_common_zero_point_stores_no_biases(bits: int) -> None:
    free, tied = weight(32, 64, 32, bits), weight(32, 64, 32, bits, zero=2 ** (bits - 1))
    assert tied.linear().nbytes == free.linear().nbytes - 32 * 2 * 2
    check(tied, inputs(5, 64))


@pytest.mark.parametrize(("bits", "group"), CASES)
def test_a_row_is_the_same_in_any_company(variant: cpu.Variant, bits: int, group: int) -> None:
    """Bit for bit: alone or with others, first or last, by one thread or more, in this variant or the portable one."""
    w = weight(200, 1152, group, bits)
    linear, x = w.linear(wide=True), inputs(70, 1152)
    whole = linear(x)
    for m in range(1, 9):
        for at in (0, 5, 70 - m):
            assert torch.equal(linear(x[at : at + m]), whole[at : at + m]), (m, at)
    for other, threads in ((variant, 1), (variant, 3), (cpu.Variant.PORTABLE, 1)):
        with cpu.forced(other, threads=threads):
            assert torch.equal(linear(x), whole), (other, threads)


@pytest.mark.parametrize("wide", [False, True])
def test_any_number_of_parts_gives_the_same_bits(variant: cpu.Variant, wide: bool) -> None:
    """Sizes of one part a thread, of a last part that is smaller, and of more parts than threads."""
    for n, k in ((577, 192), (2056, 192), (17000, 32)):
        linear, x = weight(n, k, 32, 4).linear(wide=wide, bias=torch.linspace(-1, 1, n)), inputs(8, k)
        for m in (1, 2, 5, 8):
            with cpu.forced(variant, threads=1):
                alone = linear(x[:m])
            for threads in (2, 3, 4, 7):
                with cpu.forced(variant, threads=threads):
                    assert torch.equal(linear(x[:m]), alone), (n, m, threads)


@pytest.mark.usefixtures("variant")
def test_bfloat16_bias_and_residual_round_as_separate_operations() -> None:
    w, x = weight(39, 64, 32, 4), inputs(6, 64)
    bias, residual = torch.randn(39), torch.randn(6, 39).to(torch.bfloat16)
    wide = w.linear(wide=True, bias=bias)(x)
    assert torch.equal(wide, w.linear(wide=True)(x) + bias)
    narrow = w.linear(bias=bias)
    assert torch.equal(narrow(x), wide.to(torch.bfloat16))
    assert torch.equal(narrow(x, residual), residual + wide.to(torch.bfloat16))


@pytest.mark.usefixtures("variant")
def test_activations_at_the_ends_of_their_range() -> None:
    w = weight(20, 128, 32, 8)
    x = torch.zeros(6, 128, dtype=torch.bfloat16)
    assert torch.equal(w.linear()(x), torch.zeros(6, 20, dtype=torch.bfloat16))
    x[0, 40] = 1e30  # one huge value: its neighbours vanish, other groups do not
    x[0, 41], x[0, 100] = 1.0, 2.0
    x[1] = 1e-40  # subnormal
    x[2, 0], x[2, 1] = 2.0**-99, 2.0**-106
    x[3] = -1.0
    x[4, ::2], x[4, 1::2] = 0.5, -127.0
    check(w, x)
    assert torch.equal(w.linear()(x)[1], torch.zeros(20, dtype=torch.bfloat16))


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_what_is_not_finite_shows_in_its_own_row_only(bad: float) -> None:
    w, x = weight(20, 64, 32, 4), inputs(3, 64)
    clean = w.linear()(x)
    x[1, 33] = bad
    y = w.linear()(x)
    assert y[1].isnan().all()
    assert torch.equal(y[::2], clean[::2])


@pytest.mark.usefixtures("variant")
def test_largest_codes_and_activations_do_not_overflow() -> None:
    for bits in (4, 8):
        codes = torch.full((16, 64), 2**bits - 1, dtype=torch.uint8)
        w = Weight(codes, torch.ones(16, 2), torch.zeros(16, 2), 32, bits)
        for sign in (1.0, -1.0):
            x = torch.full((4, 64), sign, dtype=torch.bfloat16)
            assert torch.allclose(w.linear(wide=True)(x), torch.full((4, 16), sign * 64.0 * (2**bits - 1)), rtol=1e-6)


@pytest.mark.usefixtures("variant")
def test_rows_that_do_not_lie_together_are_copied() -> None:
    w, x = weight(24, 64, 32, 4), inputs(4, 128)
    assert torch.equal(w.linear()(x[:, 64:]), w.linear()(x[:, 64:].clone()))


def test_eight_bits_of_a_dense_weight() -> None:
    dense = torch.randn(30, 96, generator=torch.Generator().manual_seed(3))
    dense[4, 32:64] = 0.0
    codes, scales, biases = eight_bit(dense)
    back = codes.float().view(30, 3, 32) * scales[..., None] + biases[..., None]
    assert ((back - dense.view(30, 3, 32)).abs() <= 0.5001 * scales[..., None] + 1e-9).all()
    linear = CpuLinear(codes, scales, biases, group=32, bits=8, wide=True)
    assert linear.nbytes == 32 * 96 + 32 * 3 * 4  # the zero point is common: no biases
    x = inputs(2, 96)
    assert torch.allclose(linear(x), x.float() @ dense.t(), atol=0.25)


def test_four_bits_of_a_dense_weight() -> None:
    dense = torch.randn(30, 96, generator=torch.Generator().manual_seed(3))
    dense[4, 32:64] = 0.25
    codes, scales, biases = four_bit(dense)
    assert int(codes.max()) <= 15
    back = (codes.float().view(30, 3, 32) * scales[..., None] + biases[..., None]).view(30, 96)
    assert torch.equal(back[4, 32:64], dense[4, 32:64]), "a constant group is exact"
    error = (back - dense).norm() / dense.norm()
    low, high = dense.view(30, 3, 32).aminmax(dim=-1, keepdim=True)
    steps = (high - low) / 15
    plain = ((dense.view(30, 3, 32) - low) / steps.clamp_min(1e-9)).round() * steps + low
    assert error < (plain.view(30, 96) - dense).norm() / dense.norm() < 0.1, "better than the whole range"
    assert torch.equal(scales, scales.half().float())
    assert torch.equal(biases, biases.half().float())


def test_weights_come_and_go_without_touching_others() -> None:
    """Weights share large pieces of memory; one that is freed leaves its neighbours as they are."""
    torch.manual_seed(3)
    x = torch.randn(2, 64).bfloat16()

    def made(rows: int) -> CpuLinear:
        codes = torch.randint(0, 16, (rows, 64), dtype=torch.uint8)
        return CpuLinear(codes, torch.rand(rows, 2), -8 * torch.rand(rows, 2), group=32, bits=4)

    kept = [made(48 * (1 + i % 3)) for i in range(6)]
    before = [linear(x) for linear in kept]
    for _ in range(3):
        passing = [made(4096) for _ in range(300)]  # more than one piece
        assert all(linear(x).isfinite().all() for linear in passing[::97])
        del passing
    for linear, wanted in zip(kept, before, strict=True):
        assert torch.equal(linear(x), wanted)
    del kept[::2]
    assert torch.equal(kept[0](x), before[1])
