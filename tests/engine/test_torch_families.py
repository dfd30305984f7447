"""Targets of every family in torch: their logits are transformers', however the tokens are cut into passes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import FAMILIES, VOCAB, family_checkpoint, mxfp4_experts, true_logits
from safetensors.numpy import load_file, save_file
from tiny import quantize

from eagle3chat.engine.bundle import open_bundle
from eagle3chat.engine.checkpoint import open_target
from eagle3chat.engine.export import export_bundle
from eagle3chat.engine.layout import target_modules
from eagle3chat.engine.torch_backend import TorchBackend
from eagle3chat.engine.torch_layers import Norm
from eagle3chat.engine.torch_loader import Precision
from eagle3chat.engine.torch_target import Target
from eagle3chat.engine.torch_weights import Affine, Checkpoint

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


@pytest.mark.parametrize("family", FAMILIES)
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
        ("gpt_oss", {"layer_types": ["full_attention", "sliding_attention"] * 2, "num_key_value_heads": 4}),
        ("gpt_oss", {"rope_scaling": None, "num_experts_per_tok": 8}),
        ("qwen3_moe", {"norm_topk_prob": False, "tie_word_embeddings": True}),
        ("gemma4_moe", {"hidden_size_per_layer_input": 16, "num_kv_shared_layers": 3, "top_k_experts": 1}),
    ],
)
def test_so_are_those_of_their_variants(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    path = family_checkpoint(tmp_path, family, changes=changes)
    wanted = true_logits(path, PROMPT)
    target = opened(path)
    for passes in ([60], [11, 1, 1, 7, 40]):
        assert np.abs(logits(target, PROMPT, passes) - wanted).max() < 1e-4


@pytest.mark.parametrize("family", ["gemma3", "gemma4_e"])
def test_taps_are_the_stream_between_layers(family: str, tmp_path: Path) -> None:
    """At both ends too: 0 is the embedding as the first layer reads it, the last one is before the final norm."""
    path = family_checkpoint(tmp_path, family)
    target = opened(path, taps=(0, 1, 4, 6))
    streams = streams_of(path, PROMPT)
    wanted = np.concatenate([streams[boundary] for boundary in (0, 1, 4, 6)], 1)
    with torch.inference_mode():
        taps = target(torch.tensor(PROMPT))[1]
        few = target(torch.tensor(PROMPT[:3]))[1]
    assert np.abs(taps.numpy() - wanted).max() < 1e-4
    assert np.abs(few.numpy() - wanted[:3]).max() < 1e-4
    assert np.abs(streams[0] - streams[1]).max() > 0.1


def streams_of(path: Path, tokens: Sequence[int]) -> list[np.ndarray]:
    """transformers' stream [M, width] before its first layer and after each one."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager", dtype=torch.float32)
    streams: list[np.ndarray] = []
    layers = model.model.layers
    layers[0].register_forward_pre_hook(lambda _, given: streams.append(given[0][0].numpy().copy()))
    for layer in layers:
        layer.register_forward_hook(
            lambda _, __, out: streams.append((out if out.dim() == 3 else out[0])[0].numpy().copy())
        )
    with torch.inference_mode():
        model(input_ids=torch.tensor([list(tokens)]), use_cache=False, logits_to_keep=len(tokens))
    return streams


@pytest.mark.parametrize("family", ["gemma3", "gemma4", "gemma4_e"])
def test_mlx_affine_checkpoints_are_read(family: str, tmp_path: Path) -> None:
    """4 bits in groups of 32 with 8 for the embeddings; dense where groups do not divide a matrix."""
    path = family_checkpoint(tmp_path, family)
    file = path / "model.safetensors"
    tensors, dense = load_file(file), {}
    matrices = {f"{module}.weight" for module, _, _ in target_modules(open_target(path).config)}
    written: dict[str, Any] = {}
    for name, weight in tensors.items():
        if name not in matrices or weight.shape[1] % 32:
            written[name] = dense[name] = weight
            continue
        module, bits = name.removesuffix(".weight"), 8 if "embed" in name else 4
        words, scales, biases = quantize(weight, bits)
        written |= {name: words, f"{module}.scales": scales, f"{module}.biases": biases}
        parts = (torch.from_numpy(part.copy()) for part in (words, scales, biases))
        dense[name] = Affine(*parts, bits, 32).dense().numpy()
    save_file(dense, file)
    wanted = true_logits(path, PROMPT)
    save_file(written, file)
    values = json.loads((path / "config.json").read_text())
    values["quantization"] = {"group_size": 32, "bits": 4, "model.embed_tokens": {"group_size": 32, "bits": 8}}
    (path / "config.json").write_text(json.dumps(values))
    target = opened(path)
    assert np.abs(logits(target, PROMPT, [20, 1, 3, 36]) - wanted).max() < 1e-4
    backend = TorchBackend(open_bundle(tmp_path / "bundle"), device="cpu", dtype="int4")
    rough = logits(backend._target, PROMPT, [60])
    assert (rough - wanted).std() / wanted.std() < 0.1
    assert backend.memory_bytes < 0.7 * target.nbytes


def test_gpt_oss_in_mxfp4_is_exact(tmp_path: Path) -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    path = family_checkpoint(tmp_path, "gpt_oss")
    dense = load_file(path / "model.safetensors")
    values = (path / "config.json").read_text()
    for (layer, part), packed in mxfp4_experts(path, (124, 126)).items():
        dense[f"model.layers.{layer}.mlp.experts.{part}"] = convert_moe_packed_tensors(*packed).float().numpy()
    target = opened(path)
    save_file(dense, path / "model.safetensors")
    (path / "config.json").write_text(values)
    wanted = true_logits(path, PROMPT)
    assert np.abs(logits(target, PROMPT, [30, 1, 5, 24]) - wanted).max() < 1e-4


def test_a_base_model_norm_offset_is_exact_in_low_precision() -> None:
    """1 + weight is taken in float32, not rounded first: 1 + 2**-9 is 1 in bfloat16."""
    weight = torch.full((64,), 2.0**-9, dtype=torch.bfloat16)
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(1)).bfloat16() * 100
    exact = torch.nn.functional.rms_norm(x.double(), (64,), weight.double() + 1.0, 1e-6)
    assert torch.equal(Norm(weight, 1e-6, 1.0)(x), exact.to(torch.bfloat16))
    assert not torch.equal(Norm(weight + 1.0, 1e-6)(x), exact.to(torch.bfloat16))
