"""What a pass costs by its rows, from rounds made by hand."""

from __future__ import annotations

import pytest

from eagle3chat.bench import Case, Run
from eagle3chat.bench_rows import LEAST_ROUNDS, Spread, row_costs
from eagle3chat.engine.events import Round, Token, Usage

DRAFTED = Token(1, "a", 0.5, 0.5)


def rounds(drafted: int, verify: list[float | None], extra: float = 0.001) -> list[Round]:
    return [
        Round(i, i, drafted, 0.0, (DRAFTED,) * drafted, 0, None, None, (), "", (v or 0.004) + extra, 0.0, v)
        for i, v in enumerate(verify)
    ]


def run(chain: int, *groups: list[Round]) -> Run:
    every = tuple(r for group in groups for r in group)
    usage = Usage(5, 0, len(every), len(every), 0, 0, 0, (), (), (), 0.1, 1.0, 0.1)
    return Run(Case("a", "k", "x"), 0, chain, usage, every)


def test_rounds_are_grouped_by_rows_whichever_chain_they_ran_under() -> None:
    one, three = [0.002, 0.003, 0.004, 0.005, 0.006], [0.008] * 5
    runs = [run(0, rounds(0, [*one[:2]])), run(3, rounds(0, one[2:]), rounds(3, three))]
    plain, four = row_costs(runs, 8_000_000, 4e9)
    assert (plain.rows, plain.rounds, four.rows, four.rounds) == (1, 5, 4, 5)
    assert plain.verify_ms is not None
    assert [plain.verify_ms.low, plain.verify_ms.median, plain.verify_ms.high] == pytest.approx([3.0, 4.0, 5.0])
    assert (plain.verify_ratio, four.verify_ratio) == (1.0, 2.0)
    assert (plain.round_ratio, four.round_ratio) == (1.0, pytest.approx(9 / 5))
    assert plain.weight_bytes_per_second == pytest.approx(2e9)
    assert four.weight_bytes_per_second == pytest.approx(1e9)
    assert (plain.bandwidth_share, four.bandwidth_share) == (pytest.approx(0.5), pytest.approx(0.25))


def test_few_rounds_say_nothing() -> None:
    runs = [run(2, rounds(0, [0.002] * LEAST_ROUNDS), rounds(1, [0.002] * (LEAST_ROUNDS - 1)))]
    assert [cost.rows for cost in row_costs(runs, 0, None)] == [1]


def test_a_backend_without_clocks_has_rounds_and_weights_of_one_row_alone() -> None:
    runs = [run(2, rounds(0, [None] * 5, 0.0), rounds(2, [None] * 5, 0.002))]
    plain, three = row_costs(runs, 8_000_000, None)
    assert plain.verify_ms is plain.verify_ratio is three.verify_ratio is three.weight_bytes_per_second is None
    assert three.round_ratio == pytest.approx(1.5)
    assert plain.weight_bytes_per_second == pytest.approx(2e9)
    assert plain.bandwidth_share is None


def test_without_one_row_there_is_nothing_to_compare_with() -> None:
    (cost,) = row_costs([run(2, rounds(2, [0.004] * 5))], 0, 1e9)
    assert (cost.verify_ratio, cost.round_ratio, cost.weight_bytes_per_second) == (None, None, None)


@pytest.mark.parametrize(
    ("values", "spread"), [([3.0], Spread(3.0, 3.0, 3.0)), ([4.0, 1.0, 2.0, 3.0, 5.0], Spread(3.0, 2.0, 4.0))]
)
def test_a_spread_is_the_middle_with_its_quartiles(values: list[float], spread: Spread) -> None:
    assert Spread.of(values) == spread
    assert spread.times(2.0).high == 2.0 * spread.high
