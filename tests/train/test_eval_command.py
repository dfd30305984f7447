"""`eagle3chat eval`: the ways of drafting on given replies against decoding itself."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from tiny import tiny_bundle

from eagle3chat.cli import main
from eagle3chat.train.torch_evaluation import _drawn

PROMPTS = [{"id": "a", "kind": "one", "prompt": "tea or"}, {"id": "b", "kind": "two", "prompt": "the sea is"}]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bundle(tmp_path_factory.mktemp("eval"), sharp=4.0)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in PROMPTS))
    return file


def evaluated(capsys: pytest.CaptureFixture[str], *flags: str) -> list[dict[str, object]]:
    assert main(["eval", *flags]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])["findings"]


def benched(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[float, list[float]]:
    assert main(["bench", "--chains", "0,3", "--json", *flags]) == 0
    chain = json.loads(capsys.readouterr().out.splitlines()[-1])["chains"][1]
    return chain["tau"], chain["acceptance"]


@pytest.mark.parametrize(
    ("temperature", "way", "sharpness"),
    [("0", "argmax", "0.7"), ("0.8", "coupled, sharpness 0.7", "0.7"), ("0.8", "coupled, sharpness 1", "1")],
)
def test_it_finds_what_decoding_does(
    bundle: Path, prompts: Path, capsys: pytest.CaptureFixture[str], temperature: str, way: str, sharpness: str
) -> None:
    common = ["--model", str(bundle), "--prompts", str(prompts), "--dtype", "float32", "--max-new-tokens", "40"]
    found = evaluated(capsys, *common, "--temperatures", temperature, "--sharpness", sharpness, "--seed", "5")
    decoded = ["--temperature", temperature, "--sharpness", sharpness, "--seed", "5"]
    tau, acceptance = benched(capsys, *common, *decoded)
    whole = next(f for f in found if f["way"] == way and f["kind"] == "all")
    assert whole["tau"] == pytest.approx(tau, abs=1e-5)
    assert whole["acceptance"] == pytest.approx(acceptance, abs=1e-5)
    assert 0.2 < acceptance[0] < 0.99  # a draft that is right some of the time, or nothing is compared


def test_the_ways_side_by_side(bundle: Path, prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--model", str(bundle), "--prompts", str(prompts), "--dtype", "float32", "--max-new-tokens", "30"]
    found = evaluated(capsys, *common, "--temperatures", "0,1.0", "--sharpness", "1,0.5", "--seed", "1")
    ways = {(f["temperature"], f["way"]) for f in found}
    sampled = {(1.0, way) for way in ("argmax", "coupled, sharpness 1", "coupled, sharpness 0.5", "rejection sampling")}
    assert ways == {(0.0, "argmax"), *sampled}
    for f in found:
        parts = [
            p for p in found if (p["temperature"], p["way"]) == (f["temperature"], f["way"]) and p["kind"] != "all"
        ]
        assert {p["kind"] for p in parts} == {"one", "two"}
        if f["kind"] == "all":
            assert f["tokens"] == sum(p["tokens"] for p in parts)
    tau = {f["way"]: f["tau"] for f in found if f["temperature"] == 1.0 and f["kind"] == "all"}
    assert tau["rejection sampling"] > 1.05


def test_rejection_sampling_keeps_what_both_have_in_common() -> None:
    p, q = torch.tensor([0.6, 0.3, 0.1, 0.0]), torch.tensor([0.2, 0.3, 0.0, 0.5])
    rounds = _drawn(q.expand(2, 400, 4), p.expand(400, 4), random.Random(3), 400)
    assert rounds.acceptance == pytest.approx((0.5, 0.5), abs=0.02)
    same = _drawn(p.expand(2, 9, 4), p.expand(9, 4), random.Random(3), 9)
    assert same.tau == pytest.approx(3.0)
    shifted = torch.stack([p.roll(r % 2) for r in range(10)])  # place j of a chain is judged by the row j after
    aligned = torch.stack([shifted, shifted.roll(-1, 0)])
    assert _drawn(aligned, shifted, random.Random(3), 10).acceptance == pytest.approx((1.0, 1.0))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--chain", "0"], "Use --chain 1"),
        (["--limit", "0"], "measures nothing"),
        (["--temperatures", "-1"], "temperature"),
        (["--sharpness", "0"], "sharpness"),
        (["--backend", "mlx"], "torch backend only"),
    ],
)
def test_what_is_out_of_range_is_told(
    bundle: Path, capsys: pytest.CaptureFixture[str], flags: list[str], words: str
) -> None:
    assert main(["eval", "--model", str(bundle), *flags]) == 2
    assert words in capsys.readouterr().err


def test_a_bundle_without_a_draft(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--model", str(tiny_bundle(tmp_path, draft=False))]) == 2
    assert "has no draft" in capsys.readouterr().err
