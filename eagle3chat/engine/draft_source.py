"""An EAGLE-3 draft in the SpecForge or the speculators layout, as a draft in canonical form.

    weights   optional prefix `model.` or `draft_model.`; the layer is `midlayer.` or `layers.0.`
    config    flat (SpecForge, EAGLE), or with the layer's numbers under `transformer_layer_config` (speculators)
    d2t       [Vd] offsets: draft token i is target token i + d2t[i]; absent when the vocabularies are the same
    taps      ids at the top of the config are boundaries; in a nested `eagle_config` whose first id is 1 they
              name layers by their output, so the boundary is one more

What is neither used nor known to be harmless is an error that names it: an ignored weight or flag costs
acceptance in silence.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle3chat.engine.bundle import problem_in_taps, read_tensors
from eagle3chat.engine.checkpoint import DraftSource
from eagle3chat.engine.config import DraftConfig, TargetConfig
from eagle3chat.engine.draft_config import check_flags, merged
from eagle3chat.engine.errors import BundleError, CheckpointError
from eagle3chat.engine.hf_config import number, read_json, read_rope, whole
from eagle3chat.engine.layout import TARGET_IDS, problem_in_draft
from eagle3chat.engine.tensor_file import DAMAGED, LazyTensor, TensorInfo

PREFIXES = ("model.", "draft_model.")
IGNORED = ("t2d", "rotary_emb.inv_freq", "layers.0.self_attn.rotary_emb.inv_freq")
EMBEDDING = "embed_tokens.weight"
OTHER = "Use a draft that was trained for this target."


def open_eagle3(
    path: Path, target: TargetConfig, taps: Sequence[int] | None = None, own_embedding: bool | None = None
) -> DraftSource:
    """Open the draft in the directory `path`; arguments and errors as `checkpoint.open_draft`."""
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a directory.", "Give the directory of an EAGLE-3 draft.")
    config_file = path / "config.json"
    config = merged(read_json(config_file), str(config_file))
    stored = _canonical(_stored(path))
    where = path.name
    draft = _config(config, stored, target, where)
    draft = replace(draft, taps=_taps(config, target) if taps is None else tuple(taps))
    problem = problem_in_taps(draft.taps, target.num_layers)
    if problem:
        raise CheckpointError(f"{where}: {problem}.", "Name the boundaries with --taps.")
    check_flags(config, where)
    own = _wants_embedding(config, stored, draft, target) if own_embedding is None else own_embedding
    draft = replace(draft, own_embedding=own)
    ids = _target_ids(stored, draft, target, where)
    tensors = [LazyTensor(TARGET_IDS, "I64", ids.shape, ids.tobytes)]
    for name, info in stored.items():
        if name not in (*IGNORED, "d2t") and not name.startswith("verifier_") and (own or name != EMBEDDING):
            tensors.append(LazyTensor(name, info.dtype, info.shape, info.read))
    problem = problem_in_draft({tensor.name: tensor for tensor in tensors}, draft, target.vocab_size)
    if problem:
        raise CheckpointError(f"{where}: {problem}.", OTHER)
    files = (config_file, *sorted({info.path for info in stored.values()}))
    return DraftSource(path.resolve().name, draft, tuple(tensors), files)


def _stored(path: Path) -> dict[str, TensorInfo]:
    pickles = sorted(path.glob("*.bin"))
    if pickles and not any(path.glob("*.safetensors")):
        raise CheckpointError(
            f"{pickles[0]} is a pickle, which can run code when it is read.",
            "Convert it to model.safetensors first.",
        )
    if any(path.glob("adapter_model.*")):
        raise CheckpointError(f"{path} holds an adapter for the target, which is not known here.", OTHER)
    return read_tensors(path)


def _canonical(stored: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """The tensors under their canonical names."""
    renamed: dict[str, TensorInfo] = {}
    for name, info in stored.items():
        for prefix in PREFIXES:
            name = name.removeprefix(prefix)
        if name.startswith("midlayer."):
            name = "layers.0." + name.removeprefix("midlayer.")
        if name in renamed:
            raise BundleError(str(info.path), f"two tensors are called {name} without their prefix", DAMAGED)
        renamed[name] = info
    return renamed


def _config(
    config: Mapping[str, Any], stored: Mapping[str, TensorInfo], target: TargetConfig, where: str
) -> DraftConfig:
    width, heads = whole(config, "hidden_size", where), whole(config, "num_attention_heads", where)
    draft_vocab = whole(config, "draft_vocab_size", where, target.vocab_size)
    tapped = whole(config, "target_hidden_size", where, target.hidden_size)
    if tapped != target.hidden_size:
        raise CheckpointError(f"{where}: is for a target of width {tapped}, not {target.hidden_size}.", OTHER)
    vocab = whole(config, "vocab_size", where, target.vocab_size)
    if vocab != target.vocab_size:
        what = f"is for a vocabulary of {vocab} tokens, the target has {target.vocab_size}"
        raise CheckpointError(f"{where}: {what}.", OTHER)
    own_head = "lm_head.weight" in stored
    if not own_head and (draft_vocab, width) != (target.vocab_size, target.hidden_size):
        raise CheckpointError(f"{where}: lm_head.weight is missing, and the target's does not fit.", OTHER)
    speculators_qwen3 = "speculators_model_type" in config and config.get("model_type") == "qwen3"
    return DraftConfig(
        hidden_size=width,
        intermediate_size=whole(config, "intermediate_size", where),
        num_heads=heads,
        num_kv_heads=whole(config, "num_key_value_heads", where, heads),
        head_dim=whole(config, "head_dim", where, width // heads),
        rms_eps=number(config, "rms_norm_eps", where, 1e-6),
        rope=read_rope(config, where),
        draft_vocab_size=draft_vocab,
        target_hidden_size=tapped,
        taps=(),
        own_head=own_head,
        norm_before_residual=bool(config.get("norm_before_residual")),
        norm_output=bool(config.get("norm_output")),
        fc_norm=bool(config.get("fc_norm")),
        norm_before_fc=bool(config.get("norm_before_fc")),
        qk_norm="layers.0.self_attn.q_norm.weight" in stored or speculators_qwen3,
        attention_bias="layers.0.self_attn.q_proj.bias" in stored or bool(config.get("attention_bias")),
    )


def _taps(config: Mapping[str, Any], target: TargetConfig) -> tuple[int, ...]:
    key = "eagle_aux_hidden_state_layer_ids"
    ids = config.get(key)
    if ids is None:
        ids = (config.get("eagle_config") or {}).get(key)
        if isinstance(ids, list) and ids[:1] == [1]:
            ids = [i + 1 if type(i) is int else i for i in ids]
    if ids is None:
        return (2, target.num_layers // 2, target.num_layers - 3)
    if not isinstance(ids, list) or any(type(i) is not int for i in ids):
        raise CheckpointError(f"The draft's {key} {ids!r} are not layer numbers.", "Name the boundaries with --taps.")
    return tuple(ids)


def _wants_embedding(
    config: Mapping[str, Any], stored: Mapping[str, TensorInfo], draft: DraftConfig, target: TargetConfig
) -> bool:
    """Its own rows when they were trained or the target's do not fit; a frozen copy is the target's anyway."""
    if EMBEDDING not in stored:
        return False
    return bool(config.get("embed_requires_grad")) or draft.hidden_size != target.hidden_size


def _target_ids(
    stored: Mapping[str, TensorInfo], draft: DraftConfig, target: TargetConfig, where: str
) -> npt.NDArray[np.int64]:
    """[Vd] The target id of each draft token."""
    count, vocab = draft.draft_vocab_size, target.vocab_size
    places = np.arange(count, dtype=np.int64)
    info = stored.get("d2t")
    if info is None:
        if count != vocab:
            raise CheckpointError(f"{where}: d2t is missing, and {count} draft tokens are not all {vocab}.", OTHER)
        return places
    if info.dtype not in ("I64", "I32") or info.shape != (count,):
        raise CheckpointError(f"{where}: d2t is {info.dtype} {list(info.shape)}, not I64 [{count}].", OTHER)
    offsets = np.frombuffer(info.read(), "<i8" if info.dtype == "I64" else "<i4").astype(np.int64)
    ids = places + offsets
    if ids.min() < 0 or ids.max() >= vocab or (np.diff(ids) <= 0).any():
        what = "d2t does not hold offsets to ascending target ids"
        if offsets.min() >= 0 and offsets.max() < vocab and all(a < b for a, b in itertools.pairwise(offsets)):
            what += " (it seems to hold the ids themselves)"
        raise CheckpointError(f"{where}: {what}.", OTHER)
    _check_mask(stored, ids, vocab, where)
    return ids


def _check_mask(stored: Mapping[str, TensorInfo], ids: npt.NDArray[np.int64], vocab: int, where: str) -> None:
    info = stored.get("t2d")
    if info is None:
        return
    if info.shape != (vocab,):
        raise CheckpointError(f"{where}: t2d has {list(info.shape)} places, the target {vocab} tokens.", OTHER)
    if info.dtype in ("BOOL", "U8") and not np.array_equal(np.flatnonzero(np.frombuffer(info.read(), np.uint8)), ids):
        raise CheckpointError(f"{where}: d2t and t2d name different tokens.", OTHER)
