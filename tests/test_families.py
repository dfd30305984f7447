"""The tiny checkpoints that other tests trust: every family is far from flat, and the layouts of one agree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from families import FAMILIES, family_checkpoint, true_logits

TOKENS = [int(token) for token in np.random.default_rng(1).integers(3, 320, 24)]


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_depend_on_the_context_and_are_not_flat(family: str, tmp_path: Path) -> None:
    path = family_checkpoint(tmp_path, family)
    logits = true_logits(path, TOKENS)
    assert logits.shape == (len(TOKENS), 320)
    assert logits.dtype == np.float32
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    assert 0.2 < float((shares / shares.sum(-1, keepdims=True)).max(-1).mean()) < 0.8
    assert np.abs(true_logits(path, TOKENS[:7]) - logits[:7]).max() < 1e-4  # what comes later is not seen
    assert np.abs(true_logits(path, [5, *TOKENS[1:]])[1] - logits[1]).max() > 0.1


@pytest.mark.parametrize("family", ["gemma3", "gemma4", "gemma4_e", "gemma4_moe"])
def test_a_nested_checkpoint_is_the_same_model(family: str, tmp_path: Path) -> None:
    flat, nested = family_checkpoint(tmp_path, family), family_checkpoint(tmp_path / "nested", family, nested=True)
    assert np.abs(true_logits(flat, TOKENS) - true_logits(nested, TOKENS)).max() < 1e-4
