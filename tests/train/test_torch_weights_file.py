"""A draft's weights: begun from a target, given another vocabulary, written and read again."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from tiny import tiny_bundle

from eagle3chat.engine.bundle import Bundle, open_bundle
from eagle3chat.engine.checkpoint import open_draft
from eagle3chat.engine.config import DraftConfig
from eagle3chat.engine.layout import TARGET_IDS, draft_tensors
from eagle3chat.engine.tensor_file import read_header
from eagle3chat.engine.torch_weights import Checkpoint
from eagle3chat.train.job import new_config
from eagle3chat.train.torch_head import HEAD
from eagle3chat.train.torch_weights_file import (
    Learned,
    TargetRows,
    from_source,
    from_target,
    read_target_rows,
    save,
    with_vocabulary,
)

IDS = torch.arange(0, 320, 4)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return open_bundle(tiny_bundle(tmp_path_factory.mktemp("tiny"), draft=False, layers=9))


@pytest.fixture(scope="module")
def rows(bundle: Bundle) -> TargetRows:
    return read_target_rows(bundle.manifest.target, Checkpoint(bundle.target_files), torch.float32)


def begun(bundle: Bundle, rows: TargetRows, **changes: object) -> Learned:
    config = dataclasses.replace(new_config(bundle.manifest, len(IDS), None), **changes)
    return from_target(config, rows, IDS, 0)


def test_a_new_draft_begins_with_the_targets_own(bundle: Bundle, rows: TargetRows) -> None:
    learned = begun(bundle, rows)
    assert learned.config.taps == (2, 4, 6)
    shapes = draft_tensors(learned.config)
    assert {name: tuple(w.shape) for name, w in learned.weights.items()} | {TARGET_IDS: (80,)} == shapes
    checkpoint = Checkpoint(bundle.target_files)
    at, weights = "model.layers.8", learned.weights
    assert torch.equal(weights[HEAD], checkpoint.tensor("lm_head.weight")[IDS])
    assert torch.equal(weights["norm.weight"], checkpoint.tensor("model.norm.weight"))
    mlp = checkpoint.tensor(f"{at}.mlp.down_proj.weight")
    assert torch.equal(weights["layers.0.mlp.down_proj.weight"], mlp)
    queries = checkpoint.tensor(f"{at}.self_attn.q_proj.weight")
    assert torch.equal(weights["layers.0.self_attn.q_proj.weight"][:, 64:], queries)
    last = torch.ones(1, 3 * 64)
    last[:, :128] = 0.0
    assert float((last @ weights["fc.weight"].t() - 1.0).abs().max()) < 0.5  # the last tap passes


def test_another_vocabulary_keeps_rows_and_turns_new_ones(bundle: Bundle, rows: TargetRows) -> None:
    learned = begun(bundle, rows)
    turn = torch.linalg.qr(torch.randn(64, 64, generator=torch.Generator().manual_seed(1))).Q * 0.4
    weights = {**learned.weights, HEAD: learned.weights[HEAD] @ turn}
    wanted = torch.arange(0, 320, 6)
    changed = with_vocabulary(Learned(learned.config, weights, IDS), wanted, rows)
    assert changed.config.draft_vocab_size == len(wanted)
    known = wanted % 4 == 0
    assert torch.equal(changed.weights[HEAD][known], weights[HEAD][wanted[known] // 4])
    new = rows.head[wanted[~known]] @ turn
    error = (changed.weights[HEAD][~known] - new).norm() / new.norm()
    assert float(error) < 0.15
    assert with_vocabulary(learned, IDS, rows) is learned


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"taps": (0, 4, 9)},
        {"taps": (1, 4, 7)},
        {"norm_output": True, "fc_norm": True},
        {"norm_before_residual": True, "norm_before_fc": True, "attention_bias": True},
    ],
    ids=["plain", "from 0", "from 1", "3.1", "flags"],
)
def test_what_is_written_is_read_again(
    bundle: Bundle, rows: TargetRows, tmp_path: Path, changes: dict[str, object]
) -> None:
    learned = begun(bundle, rows, **changes)
    save(learned, tmp_path, bundle.manifest.target, {"target": "tiny"})
    again = from_source(open_draft(tmp_path, bundle.manifest.target))
    expected: DraftConfig = learned.config
    assert again.config == expected
    assert torch.equal(again.target_ids, IDS)
    assert set(again.weights) == set(learned.weights)
    for name, weight in again.weights.items():
        assert torch.equal(weight, learned.weights[name].to(torch.bfloat16).float()), name
    header = read_header(tmp_path / "model.safetensors")
    assert header.metadata["target"] == "tiny"
    assert header.tensors["t2d"].dtype == "BOOL" and header.tensors["d2t"].dtype == "I64"
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["LlamaForCausalLMEagle3"]
