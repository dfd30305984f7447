"""A draft's weights: read from a foreign draft, started from the target's own layer, written in SpecForge's layout.

In memory they are float32 under the canonical names of `engine.layout`. Knows no training.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from eagle3chat.engine.checkpoint import DraftSource
from eagle3chat.engine.config import DraftConfig, TargetConfig
from eagle3chat.engine.layout import TARGET_IDS, draft_tensors, group_and_bits
from eagle3chat.engine.recoding import opened
from eagle3chat.engine.tensor_file import LazyTensor, write_tensors
from eagle3chat.engine.torch_weights import Checkpoint, dense
from eagle3chat.train.torch_head import ATTENTION, HEAD, MLP

TYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "I64": torch.int64, "BOOL": torch.bool}
RIDGE = 1e-3
CONFIG, TENSORS = "config.json", "model.safetensors"


@dataclass(frozen=True, slots=True)
class Learned:
    """A draft as it is trained.

    Args:
        weights: Float32, canonical names, without target_ids.
        target_ids: int64 [Vd], ascending.
    """

    config: DraftConfig
    weights: Mapping[str, Tensor]
    target_ids: Tensor


@dataclass(frozen=True, slots=True)
class TargetRows:
    """What a draft borrows from its target.

    Args:
        embedding: [V, Ht], raw rows.
        head: [V, Ht], float32 or bfloat16.
        norm: [Ht], of the final norm.
        layer: The last layer's tensors, float32, by their name inside the layer.
    """

    embedding: Tensor
    head: Tensor
    norm: Tensor
    layer: Mapping[str, Tensor]


def read_target_rows(config: TargetConfig, checkpoint: Checkpoint, dtype: torch.dtype) -> TargetRows:
    """Embedding, head and last layer of a llama-like target."""
    c = config
    embedding = dense(checkpoint.weight("model.embed_tokens", c.vocab_size, c.hidden_size)).to(dtype)
    head = embedding if c.tie_embeddings else dense(checkpoint.weight("lm_head", c.vocab_size, c.hidden_size)).to(dtype)
    at, kind = f"model.layers.{c.num_layers - 1}", c.kind(c.num_layers - 1)
    queries, keys = c.num_heads * kind.head_dim, kind.num_kv_heads * kind.head_dim
    shapes = {
        "self_attn.q_proj": (queries, c.hidden_size),
        "self_attn.k_proj": (keys, c.hidden_size),
        "self_attn.v_proj": (keys, c.hidden_size),
        "self_attn.o_proj": (c.hidden_size, queries),
        "mlp.gate_proj": (c.intermediate_size, c.hidden_size),
        "mlp.up_proj": (c.intermediate_size, c.hidden_size),
        "mlp.down_proj": (c.hidden_size, c.intermediate_size),
    }
    plain = not (c.experts or c.shared_intermediate_size or c.sandwich_norms)  # one whose layer the draft's is like
    layer = {
        f"{name}.weight": dense(checkpoint.weight(f"{at}.{name}", *shape))
        for name, shape in shapes.items()
        if plain and f"{at}.{name}.weight" in checkpoint
    }
    for name in ("input_layernorm", "post_attention_layernorm") if plain else ():
        layer[f"{name}.weight"] = checkpoint.tensor(f"{at}.{name}.weight", c.hidden_size).float()
    norm = checkpoint.tensor("model.norm.weight", c.hidden_size).float() + c.norm_offset
    return TargetRows(embedding, head, norm, layer)


def from_source(source: DraftSource) -> Learned:
    """A foreign draft's weights."""
    tensors = {}
    for tensor in _plain(source):
        data = torch.frombuffer(bytearray(tensor.read()), dtype=TYPES[tensor.dtype]).view(tensor.shape)
        tensors[tensor.name] = data
    ids = tensors.pop(TARGET_IDS)
    return Learned(source.config, {name: value.float() for name, value in tensors.items()}, ids)


def _plain(source: DraftSource) -> Iterator[LazyTensor]:
    """The tensors, those in few bits as their numbers."""
    named = {tensor.name: tensor for tensor in source.tensors}
    for name, tensor in named.items():
        module = name.removesuffix(".weight")
        if source.quantization is not None and f"{module}.scales" in named:
            _, bits = group_and_bits(source.quantization, module)
            yield opened(tensor, named[f"{module}.scales"], named[f"{module}.biases"], bits)
        elif not name.endswith((".scales", ".biases")):
            yield tensor


def from_target(config: DraftConfig, rows: TargetRows, target_ids: Tensor, seed: int) -> Learned:
    """A new draft: the target's last layer, its final norm and head rows; its last tap passes through.

    What the target has no counterpart for, or of another shape, is small noise.
    """
    torch.manual_seed(seed)
    weights: dict[str, Tensor] = {}
    for name, shape in draft_tensors(replace(config, draft_vocab_size=len(target_ids))).items():
        if name == TARGET_IDS:
            continue
        weights[name] = torch.ones(shape) if "norm" in name else torch.randn(shape) * 0.3 * shape[-1] ** -0.5
        if name.endswith(".bias"):
            weights[name] = torch.zeros(shape)
    width, tapped = config.hidden_size, config.target_hidden_size
    if width == tapped:
        weights["fc.weight"] *= 0.1
        weights["fc.weight"][:, -tapped:] += torch.eye(width)
        weights["norm.weight"] = rows.norm.clone()
        weights[HEAD] = rows.head[target_ids].float()
        _copy_layer(weights, rows.layer)
    return Learned(config, weights, target_ids)


def _copy_layer(weights: dict[str, Tensor], layer: Mapping[str, Tensor]) -> None:
    for name in ("q_proj", "k_proj", "v_proj"):
        ours, theirs = weights[f"{ATTENTION}.{name}.weight"], layer.get(f"self_attn.{name}.weight")
        if theirs is not None and theirs.shape[0] == ours.shape[0]:  # of the normed feature; the token's half is noise
            ours[:, -theirs.shape[1] :] = theirs
    names = {f"{ATTENTION}.o_proj.weight": "self_attn.o_proj.weight"}
    names |= {f"{MLP}.{part}_proj.weight": f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")}
    names["layers.0.hidden_norm.weight"] = "input_layernorm.weight"
    names["layers.0.post_attention_layernorm.weight"] = "post_attention_layernorm.weight"
    for ours_name, theirs_name in names.items():
        theirs = layer.get(theirs_name)
        if theirs is not None and theirs.shape == weights[ours_name].shape:
            weights[ours_name] = theirs.clone()


def with_vocabulary(learned: Learned, target_ids: Tensor, rows: TargetRows) -> Learned:
    """The same draft with another draft vocabulary: rows that it has are kept.

    New rows are the target's, turned by the linear map that comes nearest to turning the target's rows into the
    draft's where both are known: as they are they would outshine rows that a draft has made its own.
    """
    old, weights = learned.target_ids, dict(learned.weights)
    if torch.equal(old, target_ids):
        return learned
    places = torch.searchsorted(old, target_ids).clamp_max(len(old) - 1)
    kept = old[places] == target_ids
    new = rows.head[target_ids].float()
    if learned.config.hidden_size == new.shape[1]:
        new = new @ _turning(rows.head[old].float(), weights[HEAD])
    else:
        new = torch.zeros(len(target_ids), learned.config.hidden_size)
    weights[HEAD] = torch.where(kept[:, None], weights[HEAD][places], new)
    return Learned(replace(learned.config, draft_vocab_size=len(target_ids)), weights, target_ids)


def _turning(x: Tensor, y: Tensor) -> Tensor:
    """A [H, H] with x @ A near y [N, H], and near the identity where x says little."""
    square = x.t() @ x
    ridge = RIDGE * square.diagonal().mean() * torch.eye(len(square))
    return torch.linalg.solve(square + ridge, x.t() @ y + ridge)


def save(learned: Learned, directory: Path, target: TargetConfig, facts: Mapping[str, str]) -> None:
    """Write SpecForge's layout: config.json and model.safetensors in bfloat16.

    Args:
        facts: Of the target, for the file's metadata.
    """
    directory.mkdir(parents=True, exist_ok=True)
    ids = learned.target_ids
    mask = torch.zeros(target.vocab_size, dtype=torch.bool)
    mask[ids] = True
    tensors = {"d2t": ids - torch.arange(len(ids))}
    for name, value in learned.weights.items():
        tensors[name.replace("layers.0.", "midlayer.")] = value.detach().to("cpu", torch.bfloat16)
    write_tensors(
        directory / TENSORS,
        [_lazy(name, value) for name, value in {**tensors, "t2d": mask}.items()],
        {"format": "pt", **facts},
    )
    (directory / CONFIG).write_text(json.dumps(_config(learned.config, target), indent=1) + "\n", encoding="utf-8")


def _lazy(name: str, value: Tensor) -> LazyTensor:
    kind = next(kind for kind, dtype in TYPES.items() if dtype == value.dtype)
    return LazyTensor(name, kind, tuple(value.shape), lambda: value.contiguous().view(torch.uint8).numpy().tobytes())


def _config(draft: DraftConfig, target: TargetConfig) -> dict[str, object]:
    config: dict[str, object] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": draft.hidden_size,
        "intermediate_size": draft.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": draft.num_heads,
        "num_key_value_heads": draft.num_kv_heads,
        "head_dim": draft.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": draft.rms_eps,
        "rope_theta": draft.rope.theta,
        "max_position_embeddings": target.max_position,
        "vocab_size": target.vocab_size,
        "draft_vocab_size": draft.draft_vocab_size,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    if draft.target_hidden_size != draft.hidden_size:
        config["target_hidden_size"] = draft.target_hidden_size
    for flag in ("norm_before_residual", "norm_output", "fc_norm", "norm_before_fc", "attention_bias"):
        if getattr(draft, flag):
            config[flag] = True
    # Readers take nested ids whose first is 1 for layers by their output, one below the boundary; other ids at the top.
    if draft.taps[0] == 2:
        nested = [tap - 1 for tap in draft.taps]
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": nested, "use_aux_hidden_state": True}
    else:
        config["eagle_aux_hidden_state_layer_ids"] = list(draft.taps)
    return config
