"""Bundles for the contract: a tiny target of every family, each with a draft of another dialect that is right in part.

The draft's layers are random, so that every row, feature and weight of it matters. Only its head is fitted: by least
squares to the target's own logits over random texts. It then agrees with the target often enough for every acceptance
count to occur, and seldom enough for every rejection.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from families import family_checkpoint
from reference import Reference
from safetensors.numpy import load_file, save_file
from tiny import tiny_tokenizer

from eagle3chat.engine.config import DraftConfig, Rope
from eagle3chat.engine.export import export_bundle
from eagle3chat.engine.layout import draft_tensors
from eagle3chat.engine.manifest import read_manifest, write_manifest

Array = npt.NDArray[np.float32]
VOCAB = 64
DRAFT_VOCAB = 56
CAPACITY = 256
CHUNK = 16
CALM = {"gemma3": 1.2, "gemma4": 0.8, "gemma4_e": 0.8, "gemma4_moe": 0.6}  # of what each layer of a target adds
FLAT = 0.35  # of the spread of its logits
TEXTS, TEXT = 24, 48  # a head is fitted to so many, of so many tokens

EAGLE31 = {"fc_norm": True, "norm_output": True}
BIASED = {"attention_bias": True, "output_bias": True, "mlp_bias": True, "fc_bias": True}
DIALECTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "norm_before_residual": {"norm_before_residual": True},
    "norm_before_fc": {"norm_before_fc": True},
    "fc_norm": {"fc_norm": True},
    "norm_output": {"norm_output": True},
    "eagle 3.1": EAGLE31,
    "qk_norm": {"qk_norm": True},
    "biases": BIASED,
    "three layers": {"num_layers": 3},
    "two layers with all": {"num_layers": 2, "qk_norm": True, "norm_before_residual": True, **BIASED, **EAGLE31},
    "first and last boundary": {"taps": (0, -1)},
    "one tap as wide as a feature": {"taps": (2,)},
    "four taps": {"taps": (0, 1, 2, -1)},
    "own embedding": {"own_embedding": True},
    "own width": {"hidden_size": 48, "own_embedding": True},
    "the target's head": {"own_head": False},
    "llama3 rope": {"rope": Rope("llama3", 10000.0, 8.0, 1.0, 4.0, 64)},
    "yarn rope": {"rope": Rope("yarn", 10000.0, 4.0, original_max_position=64, attention_factor=1.1386294361119891)},
}
"""Fields of `DraftConfig` by dialect; taps below 0 count from the last boundary."""

PAIRS = {
    "llama": "plain",
    "llama_yarn": "norm_before_residual",
    "llama_linear": "eagle 3.1",
    "qwen2": "biases",
    "qwen3": "qk_norm",
    "gemma3": "first and last boundary",
    "gemma4": "own embedding",
    "gemma4_e": "one tap as wide as a feature",
    "gpt_oss": "norm_before_fc",
    "gemma4_moe": "four taps",
    "qwen3_moe": "two layers with all",
}
"""The dialect that each family is drafted with."""


def make_pair(directory: Path, family: str, dialect: str, seed: int = 0) -> Path:
    """Write a bundle and return its path; float32, a vocabulary of VOCAB, prefill chunks of CHUNK."""
    source = family_checkpoint(directory, family, seed=seed, changes={"vocab_size": VOCAB} | _more(family))
    _calm(source, family)
    (source / "tokenizer.json").write_text(json.dumps(tiny_tokenizer(VOCAB)))
    path = export_bundle(source, None, directory / "bundle", max_prefill=CHUNK, max_seq_len=CAPACITY)
    manifest = read_manifest(path)
    target = manifest.target
    flags = dict(DIALECTS[dialect])
    taps = flags.pop("taps", (1, 2, -1))
    whole = flags.get("own_head") is False
    config = DraftConfig(
        **{
            "hidden_size": target.hidden_size,
            "intermediate_size": 80,
            "num_heads": 4,
            "num_kv_heads": 2,
            "head_dim": 32,
            "rms_eps": 1e-5,
            "rope": Rope(theta=10000.0),
            "draft_vocab_size": VOCAB if whole else DRAFT_VOCAB,
            "target_hidden_size": target.hidden_size,
            "taps": tuple(tap if tap >= 0 else target.num_layers + 1 + tap for tap in taps),
        }
        | flags
    )
    (path / "draft").mkdir()
    (path / "draft" / "config.json").write_text(json.dumps(dataclasses.asdict(config)))
    weights = _random(config, np.random.default_rng((seed, 7)))
    if config.own_embedding:
        weights["embed_tokens.weight"] = _own_rows(path, config.hidden_size, np.random.default_rng((seed, 9)))
    file = path / "draft" / "model.safetensors"
    save_file(weights, file)
    write_manifest(path, dataclasses.replace(manifest, draft=config, draft_name=dialect, default_chain=3, max_chain=8))
    if config.own_head:
        weights["lm_head.weight"] = _fitted(Reference(path), np.random.default_rng((seed, 8)))
        save_file(weights, file)
    return path


def _more(family: str) -> dict[str, Any]:
    return {"vocab_size_per_layer_input": VOCAB} if family.startswith("gemma4") else {}


def _calm(source: Path, family: str) -> None:
    """Let each layer add less to the stream, so that the next token depends mostly, not only, on the newest one."""
    file = source / "model.safetensors"
    weights = load_file(file)
    offset = 1.0 if family == "gemma3" else 0.0  # its norms multiply by 1 + weight
    calm = CALM.get(family, 0.35)
    after = ("post_attention_layernorm.weight", "post_feedforward_layernorm.weight", "post_per_layer_input_norm.weight")
    weights["model.norm.weight"] = FLAT * (offset + weights["model.norm.weight"]) - offset
    for name, weight in weights.items():
        if family.startswith("gemma"):
            if name.endswith(after):
                weights[name] = calm * (offset + weight) - offset
        elif name.endswith(("o_proj.weight", "o_proj.bias")) or "down_proj" in name:
            weights[name] = calm * weight
    save_file(weights, file)


def _random(config: DraftConfig, rng: np.random.Generator) -> dict[str, Any]:
    """Tensors of a draft. Queries are like keys, so that a row attends to itself most, to the newest token."""
    weights: dict[str, Any] = {}
    shapes = draft_tensors(config)
    for name, shape in shapes.items():
        drawn = rng.standard_normal(shape)
        if name.endswith("norm.weight") or name.startswith("fc_norm"):
            drawn = (1.5 if name.endswith(("q_norm.weight", "k_norm.weight")) else 1.0) + 0.2 * drawn
        elif name.endswith(".bias"):
            drawn *= 0.2
        else:
            drawn *= shape[-1] ** -0.5
        weights[name] = drawn.astype(np.float32)
    weights["target_ids"] = np.sort(rng.permutation(VOCAB)[: config.draft_vocab_size]).astype(np.int64)
    weights["fc.weight"] *= 0.4
    group = config.num_heads // config.num_kv_heads
    for index in range(config.num_layers):
        at = f"layers.{index}"
        keys = weights[f"{at}.self_attn.k_proj.weight"].reshape(config.num_kv_heads, config.head_dim, -1)
        queries = weights[f"{at}.self_attn.q_proj.weight"]
        queries *= 0.5
        queries += 1.4 * np.repeat(keys, group, 0).reshape(queries.shape)
        if index == 0:
            _carry(weights, config, rng)
        weights[f"{at}.mlp.down_proj.weight"] *= 0.4
    return weights


def _carry(weights: dict[str, Any], config: DraftConfig, rng: np.random.Generator) -> None:
    """Let the first query head of each group pass on what the values have of the embedding, turned and not blurred."""
    values, out = (weights[f"layers.0.self_attn.{name}.weight"] for name in ("v_proj", "o_proj"))
    width, head, group = config.hidden_size, config.head_dim, config.num_heads // config.num_kv_heads
    values *= 0.3
    out *= 0.3
    values[:, :width] += _turned(rng, len(values), width)
    first = [h * group * head + column for h in range(config.num_kv_heads) for column in range(head)]
    out[:, first] += _turned(rng, width, len(first))


def _turned(rng: np.random.Generator, rows: int, columns: int) -> Array:
    """A random matrix whose shorter side's vectors are orthonormal."""
    q = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))[0]
    return (q if rows >= columns else q.T).astype(np.float32)


def _own_rows(path: Path, width: int, rng: np.random.Generator) -> Array:
    """An embedding [V, width] that is like the target's and not the same."""
    rows = load_file(path / "target" / "model.safetensors")["model.embed_tokens.weight"]
    return ((1.0 + 0.2 * rng.standard_normal((len(rows), width))) * rows[:, :width]).astype(np.float32)


def _fitted(reference: Reference, rng: np.random.Generator) -> Array:
    """The head [Vd, H] whose logits are nearest to the target's, over random texts."""
    assert reference.draft is not None
    seen, wanted = [], []
    for _ in range(TEXTS):
        tokens = rng.integers(3, VOCAB, TEXT).tolist()
        logits = reference.target(tokens)[0][1:]  # row i pairs feature i with token i + 1, and foretells what follows
        wanted.append((logits - logits.mean(-1, keepdims=True))[:, reference.draft.target_ids])
        out = reference.draft.outputs(reference.features(tokens[:-1]), tokens[1:])
        seen.append(out / np.sqrt((out * out).mean(-1, keepdims=True)) * reference.draft.weights["norm.weight"])
    x, y = np.concatenate(seen), np.concatenate(wanted)
    ridge = x.T @ x + 1.0 * np.eye(x.shape[1])
    return np.ascontiguousarray(np.linalg.solve(ridge, x.T @ y).T, np.float32)
