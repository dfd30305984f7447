"""Attention over a few rows: the numbers of its plain twin, and a row's bits whatever stands beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from eagle3chat.kernels import cpu
from eagle3chat.kernels.cpu_attention import Attend, fits
from eagle3chat.kernels.twin_attention import PlainAttend

pytestmark = pytest.mark.skipif(cpu.library() is None, reason="the kernels are not built here")
BORDERS = (0, 1, 31, 63, 64, 65, 126, 127, 128, 129, 255, 256, 383)  # around chunks of 128 and their tiles
DTYPES = (torch.bfloat16, torch.float32)


@pytest.fixture(params=cpu.variants(), ids=lambda variant: variant.name.lower())
def variant(request: pytest.FixtureRequest) -> Iterator[cpu.Variant]:
    with cpu.forced(request.param, threads=1):
        yield request.param


def check_rounded(got: Tensor, wanted: Tensor, spread: float) -> None:
    """Queries and weights are rounded too, so a sum of terms that cancel is off by its terms' share."""
    assert (got - wanted).abs().max() < 0.02 and (got - wanted).float().std() < spread * wanted.float().std()


class Case:
    """A layer with `start` filled rows; everything behind them is not a number."""

    def __init__(
        self,
        heads: int,
        kv_heads: int,
        d: int,
        start: int,
        rows: int,
        dtype: torch.dtype,
        *,
        normed: bool = False,
        scale: float | None = None,
        table: torch.dtype | None = None,
    ) -> None:
        made = torch.Generator().manual_seed(1000 * start + rows)
        capacity = start + rows + 3
        self.start, self.rows = start, rows
        self.cache = torch.full((2 * kv_heads, capacity, d), torch.nan, dtype=dtype)
        self.cache[:, :start] = torch.randn(2 * kv_heads, start, d, generator=made).to(dtype)
        angles = torch.rand(capacity, d // 2, generator=made) * 7
        tables = torch.stack((angles.cos().repeat(1, 2), torch.cat((-angles.sin(), angles.sin()), -1)))
        cosines, sines = tables.to(table or dtype)
        norms = [torch.rand(d, generator=made) + 0.5 if normed else None for _ in "qk"]
        self.layer = (heads, cosines, sines, *norms, 1e-5, scale)
        self.qkv = torch.randn(rows, (heads + 2 * kv_heads) * d, generator=made).to(dtype)

    def run(self, kind: type[Attend] | type[PlainAttend]) -> tuple[Tensor, Tensor]:
        """The rows in one call; what comes out, and the cache."""
        cache = self.cache.clone()
        return kind(cache, *self.layer)(self.qkv, self.start), cache

    def run_by_row(self) -> tuple[Tensor, Tensor]:
        """The rows in a call each."""
        cache = self.cache.clone()
        layer = Attend(cache, *self.layer)
        rows = [layer(self.qkv[i : i + 1].clone(), self.start + i) for i in range(self.rows)]
        return torch.cat(rows), cache

    def check_twin(self) -> None:
        (got, cache), (wanted, plain_cache) = self.run(Attend), self.run(PlainAttend)
        # float32: sums of up to 2000 products; bfloat16: one rounding, that of the result.
        loose = {"rtol": 2**-7, "atol": 1e-4} if got.dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
        if got.dtype == torch.bfloat16 and cpu.variant() == cpu.Variant.AVX512_BF16:
            check_rounded(got, wanted, 0.006)
        else:
            torch.testing.assert_close(got, wanted, **loose)
        torch.testing.assert_close(cache, plain_cache, equal_nan=True, **loose)

    def check_many(self) -> None:
        (got, cache), (wanted, plain_cache) = self.run(Attend), self.run(PlainAttend)
        if got.dtype == torch.float32:
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
        else:
            check_rounded(got, wanted, 0.004)
        torch.testing.assert_close(cache, plain_cache, equal_nan=True, rtol=2**-7, atol=1e-4)
        half = self.rows // 2  # in two calls: the same bits
        cache_apart = self.cache.clone()
        layer = Attend(cache_apart, *self.layer)
        apart = [layer(self.qkv[:half].clone(), self.start), layer(self.qkv[half:].clone(), self.start + half)]
        assert torch.equal(torch.cat(apart), got)
        assert torch.equal(cache_apart[:, : self.start + self.rows], cache[:, : self.start + self.rows])

    def check_rows(self) -> None:
        (together, cache), (apart, cache_apart) = self.run(Attend), self.run_by_row()
        assert together.isfinite().all()
        assert torch.equal(together, apart)
        assert torch.equal(cache[:, : self.start + self.rows], cache_apart[:, : self.start + self.rows])


@pytest.mark.parametrize("rows", [*range(1, 9), 16])
@pytest.mark.parametrize("d", [16, 32, 48, 64, 128, 256])
def test_rows_and_head_sizes(d: int, rows: int, variant: cpu.Variant) -> None:
    for dtype in DTYPES:
        case = Case(6, 2, d, 101, rows, dtype)
        case.check_twin()
        case.check_rows()


@pytest.mark.parametrize("start", BORDERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_around_the_borders_of_blocks(start: int, dtype: torch.dtype, variant: cpu.Variant) -> None:
    for rows in (1, 2, 3, 5, 8):
        case = Case(4, 2, 32, start, rows, dtype)
        case.check_twin()
        case.check_rows()


@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (4, 2), (9, 3), (8, 2), (1, 1), (7, 1), (32, 1)])
def test_groups_of_heads(heads: int, kv_heads: int, variant: cpu.Variant) -> None:
    for rows in (1, 2, 5):
        case = Case(heads, kv_heads, 32, 130, rows, torch.bfloat16)
        case.check_twin()
        case.check_rows()


def test_long_context(variant: cpu.Variant) -> None:
    for rows in (1, 4):
        case = Case(9, 3, 64, 2000, rows, torch.bfloat16)
        case.check_twin()
        case.check_rows()


def test_more_rows_than_the_scratch_holds(variant: cpu.Variant) -> None:
    """They are done in turns."""
    case = Case(64, 2, 128, 1900, 16, torch.bfloat16)
    case.check_twin()


@pytest.mark.parametrize("table", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_head_norms_and_tables(dtype: torch.dtype, table: torch.dtype, variant: cpu.Variant) -> None:
    case = Case(4, 2, 64, 77, 3, dtype, normed=True, table=table)
    case.check_twin()
    case.check_rows()
    plain = Case(4, 2, 64, 77, 3, dtype, table=table)
    assert not torch.equal(case.run(Attend)[0], plain.run(Attend)[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [16, 32, 48, 64, 128, 256])
def test_many_rows_and_head_sizes(d: int, dtype: torch.dtype, variant: cpu.Variant) -> None:
    for start, rows in ((0, 35), (101, 40)):
        Case(6, 2, d, start, rows, dtype).check_many()


@pytest.mark.parametrize("dtype", DTYPES)
def test_many_rows_around_the_borders_of_blocks(dtype: torch.dtype, variant: cpu.Variant) -> None:
    for start, rows in ((0, 128), (1, 127), (127, 36), (128, 129), (255, 34), (300, 250)):
        Case(3, 1, 32, start, rows, dtype).check_many()


@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (9, 3), (1, 1), (7, 1), (32, 1), (256, 1)])
def test_many_rows_of_groups_of_heads(heads: int, kv_heads: int, variant: cpu.Variant) -> None:
    Case(heads, kv_heads, 32, 30, 45, torch.bfloat16).check_many()


@pytest.mark.parametrize("table", DTYPES)
def test_many_rows_with_head_norms_and_tables(table: torch.dtype, variant: cpu.Variant) -> None:
    for dtype in DTYPES:
        Case(4, 2, 64, 77, 40, dtype, normed=True, table=table, scale=0.2).check_many()


@pytest.mark.parametrize("threads", [2, 3])
def test_bits_of_many_rows_do_not_depend_on_threads(threads: int, variant: cpu.Variant) -> None:
    case = Case(8, 2, 64, 300, 200, torch.bfloat16)
    alone = case.run(Attend)[0]
    with cpu.forced(variant, threads=threads):
        for _ in range(3):
            assert torch.equal(case.run(Attend)[0], alone)


def test_scale_is_used(variant: cpu.Variant) -> None:
    case = Case(4, 2, 64, 77, 3, torch.float32, scale=0.7)
    case.check_twin()
    assert not torch.equal(case.run(Attend)[0], Case(4, 2, 64, 77, 3, torch.float32).run(Attend)[0])


def test_scores_far_apart(variant: cpu.Variant) -> None:
    """One score far above all others, in an early or in the last chunk: exponentials of the rest vanish."""
    for best in (3, 299):
        case = Case(2, 1, 32, 300, 2, torch.float32, scale=40.0)
        case.layer[1].fill_(1.0)
        case.layer[2].fill_(0.0)
        case.qkv[:, : 2 * 32] = case.cache[0, best].repeat(2)
        case.check_twin()
        case.check_rows()


@pytest.mark.parametrize("threads", [2, 3])
def test_bits_do_not_depend_on_threads(threads: int, variant: cpu.Variant) -> None:
    for rows in (1, 4, 16):
        case = Case(8, 2, 64, 900, rows, torch.bfloat16)
        alone = case.run(Attend)[0]
        with cpu.forced(variant, threads=threads):
            for _ in range(5):
                assert torch.equal(case.run(Attend)[0], alone)


def test_what_fits() -> None:
    assert fits(torch.empty(2, 8, 64)) and fits(torch.empty(2, 8, 512, dtype=torch.bfloat16))
    assert not fits(torch.empty(2, 8, 24))
    assert not fits(torch.empty(2, 8, 528))
    assert not fits(torch.empty(2, 8, 64, dtype=torch.float16))
    assert not fits(torch.empty(2, 8, 64, device="meta"))
