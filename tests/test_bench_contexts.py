"""Rounds by context: whose they are, what counts, and what a round grows by."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eagle3chat.bench import Case, Plan
from eagle3chat.bench_contexts import Context, ContextRounds, _with_growth, lines, measure_contexts
from eagle3chat.bench_rows import Spread
from eagle3chat.cli import main
from eagle3chat.engine.errors import SettingError
from eagle3chat.engine.meter import Memory, ProcessMeter
from eagle3chat.engine.pair import Pair, open_pair
from eagle3chat.engine.requests import PairOptions
from eagle3chat.engine.sampling import Sampling

CASES = (Case("a", "k", "one two three"),)


@pytest.fixture(autouse=True)
def no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def pair() -> Pair:
    return open_pair(PairOptions(backend="scripted"))


def plan(chains: tuple[int, ...], repeat: int = 2, tokens: int = 10) -> Plan:
    return Plan(CASES, chains, repeat, Sampling(), tokens)


def test_every_chain_runs_in_every_context_past_any_stop(pair: Pair) -> None:
    contexts = measure_contexts(pair, plan((0, 2)), [300, 20, 300], ProcessMeter())
    assert [c.tokens for c in contexts] == [20, 300]
    for context in contexts:
        assert [r.chain for r in context.rounds] == [0, 2]
        assert context.generated == 2 * 2 * 10
        plain, drafted = context.rounds
        assert plain.rounds == 2 * (10 - 2)  # the first two of a reply do not count
        assert 0 < drafted.rounds < plain.rounds
        assert context.memory_after.resident
    assert [r.growth_us for r in contexts[0].rounds] == [None, None]
    assert all(r.growth_us is not None for r in contexts[1].rounds)


def test_growth_is_told_by_a_thousand_tokens() -> None:
    def context(tokens: int, ms: float) -> Context:
        rounds = (ContextRounds(0, 5, Spread(ms, ms, ms), None, None),)
        held = Memory(tokens << 20, 9 << 30)
        after = Memory((tokens + 3) << 20, 9 << 30)
        return Context(tokens, 2.0, held, after, 40, rounds)

    short, middle, long = _with_growth([context(500, 4.0), context(1000, 4.5), context(3000, 8.5)])
    assert short.rounds[0].growth_us is None
    assert middle.rounds[0].growth_us == pytest.approx(1000.0)
    assert long.rounds[0].growth_us == pytest.approx(2000.0)
    table = lines([short, middle, long])
    assert table[3].split()[:5] == ["3000", "1500", "0", "5", "8.50"]
    assert table[3].split()[-3:] == ["-", "2.12x", "2000"]
    assert "resident 3,000.0 MiB, +3.0 MiB (40)" in table[-2]


@pytest.mark.parametrize(("chains", "lengths"), [((0,), [1]), ((0,), [100_000]), ((0,), []), ((-1,), [20])], ids=str)
def test_what_cannot_be_measured_is_told(pair: Pair, chains: tuple[int, ...], lengths: list[int]) -> None:
    with pytest.raises(SettingError):
        measure_contexts(pair, plan(chains), lengths, ProcessMeter())


def test_the_longest_context_that_fits_is_measured(pair: Pair) -> None:
    longest = pair.backend.capacity + 1 - 10
    (context,) = measure_contexts(pair, plan((0,), 1), [longest], ProcessMeter())
    assert context.generated == 10
    with pytest.raises(SettingError):
        measure_contexts(pair, plan((0,), 1), [longest + 1], ProcessMeter())


def test_the_command_prints_a_table_and_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["bench", "--backend", "scripted", "--contexts", "16,64", "--max-new-tokens", "8"]
    assert main(argv) == 0
    *table, last = capsys.readouterr().out.splitlines()
    contexts = json.loads(last)["contexts"]
    assert [(c["tokens"], [r["chain"] for r in c["rounds"]]) for c in contexts] == [(16, [0, 3]), (64, [0, 3])]
    assert any(line.split()[:1] == ["64"] and "resident" in line for line in table)
    assert main([*argv, "--json", "--chains", "1"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1 and [r["chain"] for r in json.loads(out)["contexts"][0]["rounds"]] == [1]
