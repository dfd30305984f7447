"""The script that measures prompts: what it counts, against the weights of a bundle and a loop over positions."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from safetensors import safe_open
from tiny import tiny_bundle

from eagle3chat.engine.bundle import open_bundle

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

import prefill


def test_the_count_is_that_of_the_weights_and_positions(tmp_path: Path) -> None:
    bundle = open_bundle(tiny_bundle(tmp_path, layers=3))
    manifest, rows = bundle.manifest, 10
    inside = draft = 0
    for file, kind in [(file, "target") for file in bundle.target_files] + [(bundle.draft_file, "draft")]:
        with safe_open(file, "np") as opened:
            for name in opened.keys():  # noqa: SIM118
                shape = opened.get_slice(name).get_shape()
                if len(shape) != 2 or "embed" in name or "lm_head" in name:
                    continue
                inside += shape[0] * shape[1] * (kind == "target")
                draft += shape[0] * shape[1] * (kind == "draft")
    seen = sum(position + 1 for position in range(rows))
    target = manifest.target
    attention = 4 * seen * target.num_heads * target.head_dim
    head = manifest.draft
    work = prefill.work_of(target, head, rows)
    assert work.linears == pytest.approx(2e-9 * rows * inside)
    assert work.attention == pytest.approx(1e-9 * attention * target.num_layers)
    assert work.draft == pytest.approx(2e-9 * rows * draft + 4e-9 * seen * head.num_heads * head.head_dim)
    assert work.total == pytest.approx(work.linears + work.attention + work.draft)
