"""`eagle3chat train` on a tiny target: one command from nothing to a draft that the engine opens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny import tiny_bundle

from eagle3chat.cli import main
from eagle3chat.engine.bundle import open_bundle
from eagle3chat.engine.checkpoint import open_draft

TINY = ["--conversations", "24", "--max-new-tokens", "24", "--vocabulary", "96", "--depth", "3", "--workers", "1"]
TINY += ["--compute", "float32", "--batch-tokens", "96", "--held-out", "0.2", "--learning-rate", "3e-3"]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bundle(tmp_path_factory.mktemp("tiny"), draft=False, sharp=9.0)


@pytest.fixture(scope="module")
def trained(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("made") / "draft"
    assert main(["train", "--model", str(bundle), "--output-dir", str(output), "--epochs", "12", *TINY]) == 0
    return output


def test_from_nothing_to_a_draft(trained: Path, bundle: Path) -> None:
    log = [json.loads(line) for line in (trained / "training" / "log.jsonl").read_text().splitlines()]
    updates = [entry for entry in log if entry["what"] == "update"]
    first, last = updates[:5], updates[-5:]
    assert sum(u["losses"][0] for u in last) < 0.9 * sum(u["losses"][0] for u in first)
    measured = [entry["rounds"] for entry in log if entry["what"] == "measurement"]
    assert measured[-1]["tokens"] / measured[-1]["rounds"] > measured[0]["tokens"] / measured[0]["rounds"]
    source = open_draft(trained, open_bundle(bundle).manifest.target)
    assert source.config.draft_vocab_size == 96
    assert source.config.taps == (0, 2, 3)
    assert "tiny" in (trained / "README.md").read_text()
    assert (trained / "training.svg").read_text().count("<polyline") == 6
