"""Rope kinds: speeds and scale against transformers' own, what is read from a config, and what is refused."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from families import CONFIGS

from eagle3chat.engine.config import LayerType, Rope
from eagle3chat.engine.errors import BackendError, CheckpointError
from eagle3chat.engine.hf_config import read_rope, rope_json
from eagle3chat.engine.torch_rope import Angles, frequencies

YARN = {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "original_max_position_embeddings": 4096}
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "original_max_position_embeddings": 8192,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "yarn": YARN,
    "yarn, real ends": YARN | {"truncate": False},
    "yarn, other ends": YARN | {"beta_fast": 16.0, "beta_slow": 2.0, "factor": 4.0},
    "yarn, both ends at column 0": YARN | {"original_max_position_embeddings": 6},
    "yarn, own scale": YARN | {"attention_factor": 1.25},
    "yarn, two scales": YARN | {"mscale": 0.707, "mscale_all_dim": 0.5},
    "yarn, one scale of two": YARN | {"mscale": 0.707},
    "proportional": {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25},
    "proportional, slowed": {
        "rope_type": "proportional",
        "rope_theta": 1000000.0,
        "partial_rotary_factor": 0.5,
        "factor": 2.0,
    },
}


def _true(scaling: dict[str, Any], head_dim: int) -> tuple[torch.Tensor, float]:
    """transformers' speeds, float32, and scale of cosines and sines."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import LlamaConfig
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        config = LlamaConfig(
            hidden_size=4 * head_dim, num_attention_heads=4, head_dim=head_dim, max_position_embeddings=131072
        )
        config.rope_parameters = dict(scaling)
        if scaling["rope_type"] == "default":
            return LlamaRotaryEmbedding.compute_default_rope_parameters(config)
        speeds, scale = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config)
        return speeds, scale


@pytest.mark.parametrize("head_dim", [16, 64])
@pytest.mark.parametrize("name", SCALINGS)
def test_speeds_and_scale_are_transformers_own(name: str, head_dim: int) -> None:
    scaling = SCALINGS[name]
    rope = read_rope({"rope_parameters": scaling, "max_position_embeddings": 131072}, "config.json")
    speeds, scale = _true(scaling, head_dim)
    torch.testing.assert_close(frequencies(rope, head_dim), speeds.double(), rtol=2e-6, atol=1e-12)
    assert rope.attention_factor == pytest.approx(scale, abs=1e-12)
    angles = Angles(rope, head_dim, 2, 1, 9, torch.float32, torch.device("cpu"))
    angle = torch.arange(9)[:, None] * torch.cat((speeds, speeds))
    torch.testing.assert_close(angles.cos[:, 0], angle.cos() * scale, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(angles.sin[:, 0].abs(), (angle.sin() * scale).abs(), rtol=1e-5, atol=1e-5)
    assert bool((angles.cos[:, 1] == 1.0).all()) and bool((angles.sin[:, 1] == 0.0).all())  # values keep their length


@pytest.mark.parametrize("name", SCALINGS)
def test_a_rope_is_written_as_it_is_read(name: str) -> None:
    rope = read_rope({"rope_parameters": SCALINGS[name], "max_position_embeddings": 131072}, "config.json")
    assert read_rope({"rope_parameters": rope_json(rope)}, "config.json") == rope


@pytest.mark.parametrize(
    ("config", "layer", "rope"),
    [
        (CONFIGS["gemma4"], "sliding", Rope(theta=10000.0)),
        (CONFIGS["gemma4"], "full", Rope("proportional", 1000000.0, partial=0.25)),
        (CONFIGS["gemma3"], "sliding", Rope(theta=10000.0)),
        (CONFIGS["gemma3"], "full", Rope("linear", 1000000.0, 8.0)),
        (CONFIGS["llama"] | {"rope_theta": None, "rope_scaling": None}, "full", Rope(theta=7.0)),
        (CONFIGS["qwen3"], "full", Rope(theta=1000000.0)),
    ],
)
def test_what_a_config_says_of_a_kind_of_layer(config: dict[str, Any], layer: LayerType, rope: Rope) -> None:
    assert read_rope(config, "config.json", layer, 7.0) == rope


def test_yarn_without_a_factor_takes_the_ratio_of_the_lengths() -> None:
    scaling = {key: value for key, value in YARN.items() if key != "factor"}
    rope = read_rope({"rope_scaling": scaling, "max_position_embeddings": 4 * 4096}, "config.json")
    assert rope.factor == 4.0


@pytest.mark.parametrize("share", [0.0, -1, 1.5, True, "half"])
def test_a_share_of_the_columns_lies_within_0_and_1(share: object) -> None:
    scaling = SCALINGS["proportional"] | {"partial_rotary_factor": share}
    with pytest.raises(CheckpointError, match=r"partial_rotary_factor is .*, not within 0\.\.1"):
        read_rope({"rope_parameters": scaling}, "config.json")


def test_what_torch_does_not_know_is_refused() -> None:
    with pytest.raises(BackendError, match="'longrope' rope, which the torch backend does not know"):
        frequencies(replace(Rope(), kind="longrope"), 16)  # type: ignore[arg-type]
    with pytest.raises(BackendError, match=r"'default' rope of 0\.5 of the columns"):
        frequencies(Rope(partial=0.5), 16)
