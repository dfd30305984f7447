"""The slow truth itself: its targets against transformers, its choice rule against the plain one."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from families import FAMILIES, family_checkpoint, true_logits
from reference import Reference
from reference.choice import noise, penalised, shaped

from eagle3chat.engine import sampling as plain
from eagle3chat.engine.export import export_bundle
from eagle3chat.engine.sampling import Before, Sampling

SIZE = 97
TOKENS = np.random.default_rng(6).integers(3, 320, 40).tolist()  # windows of 8 have passed over most of them


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_those_of_transformers(family: str, tmp_path: Path) -> None:
    source = family_checkpoint(tmp_path, family, seed=1)
    reference = Reference(export_bundle(source, None, tmp_path / "bundle"))
    logits, streams = reference.target(TOKENS)
    assert len(streams) == reference.manifest.target.num_layers + 1
    wanted = true_logits(source, TOKENS)
    assert float(np.abs(wanted).max()) > 3.0
    np.testing.assert_allclose(logits, wanted, rtol=2e-5, atol=1e-4)


@pytest.mark.parametrize("position", [0, 1, 77, 4096])
@pytest.mark.parametrize("seed", [0, 5, 2**64 - 1])
def test_noise_is_the_plain_one(seed: int, position: int) -> None:
    assert noise(seed, position, SIZE).tolist() == pytest.approx(plain.gumbel_row(seed, position, SIZE), abs=1e-12)


@pytest.mark.parametrize("trial", range(12))
def test_penalties_and_filters_are_the_plain_ones(trial: int) -> None:
    rng = random.Random(trial)
    sampling = Sampling(
        temperature=rng.choice((0.0, 0.6, 1.3)),
        top_k=rng.choice((0, 12)),
        top_p=rng.choice((1.0, 0.8)),
        min_p=rng.choice((0.0, 0.1)),
        repetition=rng.choice((1.0, 1.4)),
        presence=rng.choice((0.0, 0.7)),
        frequency=rng.choice((0.0, -0.5)),
    )
    logits = [round(rng.gauss(0.0, 2.0), 1) for _ in range(SIZE)]  # rounded: ties
    prompt, reply = ([rng.randrange(SIZE) for _ in range(30)] for _ in range(2))
    row = shaped(penalised(np.array(logits), prompt, reply, range(SIZE), sampling), sampling)
    wanted = plain.filtered(logits, sampling, Before(prompt, reply))
    assert row.tolist() == pytest.approx(wanted, abs=1e-12)
