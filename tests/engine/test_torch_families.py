"""Targets of every dense family in torch: their logits are transformers', however the tokens are cut into passes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import VOCAB, family_checkpoint, true_logits

from eagle3chat.engine.bundle import open_bundle
from eagle3chat.engine.export import export_bundle
from eagle3chat.engine.torch_loader import Precision
from eagle3chat.engine.torch_target import Target
from eagle3chat.engine.torch_weights import Checkpoint

DENSE = ("llama", "llama_yarn", "llama_linear", "qwen2", "qwen3", "gemma3", "gemma4", "gemma4_e")
PROMPT = [(7 * i * i + 3 * i) % VOCAB for i in range(60)]
PLAIN = Precision(torch.float32, False, torch.device("cpu"))


def opened(path: Path, taps: tuple[int, ...] = (), capacity: int = 128) -> Target:
    """The target of a bundle, made of a checkpoint through export."""
    bundle = open_bundle(export_bundle(path, None, path.parent / "bundle"))
    checkpoint = Checkpoint(bundle.target_files)
    try:
        return Target(bundle.manifest.target, checkpoint, taps, capacity, PLAIN, lambda _: None)
    finally:
        checkpoint.close()


@torch.inference_mode()
def logits(target: Target, tokens: Sequence[int], passes: Sequence[int]) -> np.ndarray:
    """Logits [M, V] by passes of so many rows each, from an empty cache."""
    target.cache.keep(0)
    ids, parts, start = torch.tensor(tokens), [], 0
    for rows in passes:
        parts.append(target.logits(target(ids[start : start + rows])[0]))
        target.cache.advance(rows)
        start += rows
    assert start == len(tokens)
    return torch.cat(parts).numpy()


@pytest.mark.parametrize("family", DENSE)
def test_logits_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    path = family_checkpoint(tmp_path, family)
    target = opened(path)
    for length in (1, 7, 9, 60):
        wanted = true_logits(path, PROMPT[:length])
        assert wanted.std() > 1.0
        got = logits(target, PROMPT[:length], [length])
        assert np.abs(got - wanted).max() < 1e-4
    for passes in ([20, 1, 1, 5, 1, 17, 3, 12], [1] * 30 + [30], [9, 9, 9, 9, 9, 9, 6]):
        assert np.abs(logits(target, PROMPT, passes) - wanted).max() < 1e-4


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("gemma3", {"tie_word_embeddings": False}),
        ("gemma4", {"tie_word_embeddings": False}),
        ("gemma4", {"attention_k_eq_v": False, "num_global_key_value_heads": None}),
        ("gemma4_e", {"use_double_wide_mlp": False, "num_kv_shared_layers": 2}),
        ("gemma4_e", {"num_kv_shared_layers": 0, "final_logit_softcapping": None}),
        ("gemma3", {"sliding_window": 1, "rope_scaling": None}),
    ],
)
def test_so_are_those_of_their_variants(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    path = family_checkpoint(tmp_path, family, changes=changes)
    wanted = true_logits(path, PROMPT)
    target = opened(path)
    for passes in ([60], [11, 1, 1, 7, 40]):
        assert np.abs(logits(target, PROMPT, passes) - wanted).max() < 1e-4
