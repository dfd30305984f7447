"""`eagle3chat bench` on the scripted pair, and the prompts that it reads."""

from __future__ import annotations

import dataclasses
import gc
import io
import json
from pathlib import Path

import pytest
from tiny import tiny_bundle

from eagle3chat.arguments import build_parser
from eagle3chat.bench import Case, Plan, load_cases, measure
from eagle3chat.cli import main
from eagle3chat.engine.errors import SettingError
from eagle3chat.engine.pair import open_pair
from eagle3chat.engine.requests import PairOptions
from eagle3chat.engine.sampling import Sampling
from eagle3chat.opening import open_wished
from eagle3chat.wishes import read_wishes


@pytest.fixture(autouse=True)
def no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def test_the_table_and_the_document_tell_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["bench", "--backend", "scripted", "--chains", "0,1,3", "--limit", "3", "--max-new-tokens", "12"]
    assert main([*argv, "--temperature", "0.7", "--seed", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    document = json.loads(lines[-1])
    assert [chain["chain"] for chain in document["chains"]] == [0, 1, 3]
    plain, one, three = document["chains"]
    assert plain["tokens"] == one["tokens"] == three["tokens"] == 36
    assert (plain["rounds"], plain["tau"], plain["acceptance"]) == (36, 1.0, [])
    assert three["rounds"] < one["rounds"] < 36
    assert len(three["acceptance"]) == 3
    assert all(chain["same"] == chain["runs"] == 3 for chain in document["chains"])
    assert (document["prompts"], document["sampling"]["seed"]) == (3, 3)
    first = lines.index(next(line for line in lines if line.startswith("chain   tok/s"))) + 1
    rows = {line.split()[0]: line for line in lines[first : first + 3]}
    assert set(rows) == {"0", "1", "3"}
    assert f"{three['tau']:.3f}" in rows["3"]
    assert f"{three['speedup_median']:.2f}x" in rows["3"]
    assert "3 of 3" in rows["3"]
    assert sum(kind["prompts"] for kind in document["tau_by_kind"] if kind["chain"] == 3) == 3


def test_json_prints_the_document_alone(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["bench", "--backend", "scripted", "--json", "--chains", "2", "--limit", "1", "--max-new-tokens", "4"]
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    (chain,) = json.loads(out)["chains"]
    assert (chain["speedup_median"], chain["same"]) == (None, None)


def test_chains_take_turns_and_nothing_is_reused() -> None:
    cases = (Case("a", "k", "one"), Case("b", "k", "two"))
    plan = Plan(cases, (0, 2), 2, Sampling(seed=1), 6)
    pair = open_pair(PairOptions(backend="scripted"))
    runs = list(measure(pair, plan))
    assert [(r.repeat, r.case.id, r.chain) for r in runs] == [
        (0, "a", 0),
        (0, "a", 2),
        (0, "b", 2),
        (0, "b", 0),
        (1, "a", 2),
        (1, "a", 0),
        (1, "b", 0),
        (1, "b", 2),
    ]
    assert all(r.usage.reused_tokens == 0 for r in runs)
    assert all(r.usage.generated_tokens == 6 == len(r.token_ids) for r in runs)


def test_the_packaged_prompts_are_distinct() -> None:
    cases = load_cases()
    assert len({case.id for case in cases}) == len(cases) >= 8
    assert len({case.kind for case in cases}) >= 6
    assert load_cases(limit=2) == cases[:2]


def test_a_prompts_file(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"id": 7, "prompt": "x"}\n\n{"id": "b", "kind": "code", "prompt": "y", "more": 1}\n')
    assert load_cases(file) == (Case("7", "other", "x"), Case("b", "code", "y"))


@pytest.mark.parametrize(
    ("text", "named"),
    [("", "no prompts"), ("{", "line 1"), ('{"prompt": "x"}\n[1]', "line 2"), ('{"id": "a"}', "no prompt")],
)
def test_a_damaged_prompts_file_is_told_by_line(text: str, named: str, tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(text)
    with pytest.raises(SettingError, match=named):
        load_cases(file)


def test_a_chain_that_finds_its_length_is_measured_beside_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["bench", "--backend", "scripted", "--chains", "0,auto", "--limit", "2", "--max-new-tokens", "12"]
    assert main([*argv, "--seed", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    plain, auto = json.loads(lines[-1])["chains"]
    assert (plain["chain"], auto["chain"]) == (0, "auto")
    assert auto["same"] == auto["runs"] == 2
    assert auto["speedup_lowest"] <= auto["speedup_median"]
    assert any(line.startswith(" auto ") for line in lines)


def test_chains_that_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    for chains in ("", "-1,2", "auto,auto", "2,two"):
        assert main(["bench", "--backend", "scripted", f"--chains={chains}"]) == 2
        assert "chain" in capsys.readouterr().err


def test_every_key_of_the_document_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    told = (Path(__file__).parents[1] / "docs" / "bench.md").read_text(encoding="utf-8")
    argv = ["bench", "--backend", "scripted", "--chains", "0,2", "--limit", "1", "--max-new-tokens", "24", "--json"]
    assert main([*argv, "--profile"]) == 0
    value = json.loads(capsys.readouterr().out)
    (context,) = json.loads(contexts_of(argv, capsys))["contexts"]
    parts = [value, value["chains"][1], value["rows"][0], value["tau_by_kind"][0], value["profile"][0], value["memory"]]
    parts += [value["machine"], context, context["rounds"][0]]
    missing = [key for part in parts for key in part if f"`{key}`" not in told]
    assert not missing
    phases = value["profile"][0]["phases"]
    assert sum(phases.values()) == pytest.approx(value["profile"][0]["round_ms"], rel=1e-3)


def contexts_of(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main([*argv, "--contexts", "32"]) == 0
    return capsys.readouterr().out


def test_the_table_says_how_it_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["bench", "--backend", "scripted", "--chains", "0,2", "--limit", "2", "--max-new-tokens", "12", "--profile"]
    assert main(argv) == 0
    lines = capsys.readouterr().out.splitlines()
    starts = {line.split()[0] for line in lines if line.split()}
    assert {"machine", "memory", "pair", "prompts", "order", "lowest", "rows", "target", "commit", "all"} <= starts
    assert any(line.startswith("lowest   chain 2: ") for line in lines)


@pytest.mark.parametrize(("check", "collected"), [(False, 0), (True, 1)])
def test_what_opening_makes_is_no_work_for_the_collector(
    check: bool, collected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(gc, "freeze", lambda: done.append("freeze"))
    monkeypatch.setattr(gc, "collect", lambda: done.append("collect"))
    argv = ["bench", "--backend", "torch", "--device", "cpu", "--model", str(tiny_bundle(tmp_path))]
    wishes = read_wishes(build_parser().parse_args(argv), max_new_tokens=4)
    options = dataclasses.replace(wishes.options, check=check)
    open_wished(dataclasses.replace(wishes, options=options), io.StringIO()).close()
    assert done == ["collect"] * collected + ["freeze"]
    done.clear()
    open_wished(dataclasses.replace(wishes, options=PairOptions(backend="scripted")), io.StringIO()).close()
    assert not done
