"""An EAGLE-3 draft in any of its public layouts, as a draft in canonical form.

    files     draft_files.py          safetensors, or a pickle of tensors alone
    names     draft_names.py          prefixes, `midlayer.` or `layers.0.`, `additional_layers.`
    config    draft_config.py         flat, `transformer_layer_config`, `eagle_config`
    d2t       draft_vocabulary.py     offsets, checked
    embedding draft_embedding.py      own or the target's
    few bits  draft_quantization.py   matrices in MLX's affine layout, declared as there
    taps      ids at the top of the config are boundaries; in a nested `eagle_config` whose first id is 1 they
              name layers by their output, so the boundary is one more

What is neither used nor known to be harmless is an error that names it: an ignored weight or flag costs
acceptance in silence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from eagle3chat.engine.bundle import CONFIG, problem_in_taps
from eagle3chat.engine.checkpoint import DraftSource
from eagle3chat.engine.config import DraftConfig, TargetConfig
from eagle3chat.engine.draft_config import EAGLE_CONFIG, TAP_IDS, check_flags, merged, read_draft_rope
from eagle3chat.engine.draft_embedding import TargetRows, check_shared, wants_own
from eagle3chat.engine.draft_files import read_weights
from eagle3chat.engine.draft_names import canonical, layer_count
from eagle3chat.engine.draft_quantization import read_quantization
from eagle3chat.engine.draft_vocabulary import MASK, OFFSETS, target_ids
from eagle3chat.engine.errors import CheckpointError
from eagle3chat.engine.hf_values import number, read_json, whole
from eagle3chat.engine.layout import DRAFT_EMBEDDING, TARGET_IDS, problem_in_draft
from eagle3chat.engine.tensor_file import LazyTensor

HEAD = "lm_head.weight"
OTHER = "Use a draft that was trained for this target."
Named = Mapping[str, LazyTensor]


def open_eagle3(
    path: Path,
    target: TargetConfig,
    taps: Sequence[int] | None = None,
    own_embedding: bool | None = None,
    rows: TargetRows | None = None,
    share_embedding: bool = False,
) -> DraftSource:
    """Open the draft in the directory `path`; arguments and errors as `checkpoint.open_draft`."""
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a directory.", "Give the directory of an EAGLE-3 draft.")
    config_file, where = path / CONFIG, path.name
    config = merged(read_json(config_file), str(config_file))
    check_flags(config, where)
    stored, files = read_weights(path)
    named: Named = canonical(stored, where)
    draft = replace(_config(config, named, target, where), num_layers=_num_layers(config, named, target, where))
    boundaries, how = _taps(config, target) if taps is None else (tuple(taps), "as given")
    draft = replace(draft, taps=boundaries)
    _check_taps(draft, config, named, target, where)
    if share_embedding:
        check_shared(named, draft, target, rows, where)
        own_embedding = False
    own, remark = wants_own(named, config, draft, target, own_embedding, rows, where)
    draft = replace(draft, own_embedding=own)
    named, draft = _with_head(named, draft, config, target, where)
    tensors = _tensors(named, draft, target, where)
    quantization = read_quantization(config, named, where)
    problem = problem_in_draft({tensor.name: tensor for tensor in tensors}, draft, target.vocab_size, quantization)
    if problem:
        raise CheckpointError(f"{where}: {problem}.", OTHER)
    remarks = (
        f"{where}: taps at boundaries {', '.join(map(str, draft.taps))} ({how})",
        remark and f"{where}: {remark}",
    )
    files = (config_file, *files)
    return DraftSource(path.resolve().name, draft, tensors, files, tuple(filter(None, remarks)), quantization)


def _config(config: Mapping[str, Any], named: Named, target: TargetConfig, where: str) -> DraftConfig:
    """Of everything but the number of layers, the taps, the embedding and the head."""
    width, heads = whole(config, "hidden_size", where), whole(config, "num_attention_heads", where)
    tapped = whole(config, "target_hidden_size", where, target.hidden_size)
    if tapped != target.hidden_size:
        raise CheckpointError(f"{where}: is for a target of width {tapped}, not {target.hidden_size}.", OTHER)
    vocab = whole(config, "vocab_size", where, target.vocab_size)
    if vocab != target.vocab_size:
        what = f"is for a vocabulary of {vocab} tokens, the target has {target.vocab_size}"
        raise CheckpointError(f"{where}: {what}.", OTHER)
    kept = named[OFFSETS].shape[:1] if OFFSETS in named else ()
    inner = "intermediate_size"
    if config.get("model_type") == "llama4_text" and config.get("intermediate_size_mlp"):
        inner = "intermediate_size_mlp"  # the other one is that of the target's experts
    qkv_bias = _any(named, "self_attn", "q_proj.bias", "k_proj.bias", "v_proj.bias")
    fc_bias = "fc.bias" in named
    speculators_qwen3 = "speculators_model_type" in config and config.get("model_type") == "qwen3"
    return DraftConfig(
        hidden_size=width,
        intermediate_size=whole(config, inner, where),
        num_heads=heads,
        num_kv_heads=whole(config, "num_key_value_heads", where, heads),
        head_dim=whole(config, "head_dim", where, _head_dim(named, heads) or width // heads),
        rms_eps=number(config, "rms_norm_eps", where, 1e-6),
        rope=read_draft_rope(config, where),
        draft_vocab_size=whole(config, "draft_vocab_size", where, kept[0] if kept and kept[0] else target.vocab_size),
        target_hidden_size=tapped,
        taps=(),
        norm_before_residual=bool(config.get("norm_before_residual")),
        norm_output=bool(config.get("norm_output")),
        fc_norm=bool(config.get("fc_norm")),
        norm_before_fc=bool(config.get("norm_before_fc")),
        qk_norm=_any(named, "self_attn", "q_norm.weight", "k_norm.weight") or speculators_qwen3,
        attention_bias=qkv_bias or bool(config.get("attention_bias") or config.get("qkv_bias")),
        output_bias=_any(named, "self_attn", "o_proj.bias"),
        mlp_bias=_any(named, "mlp", "gate_proj.bias", "up_proj.bias", "down_proj.bias") or bool(config.get("mlp_bias")),
        fc_bias=fc_bias or (bool(config.get("bias")) and not qkv_bias),
    )


def _num_layers(config: Mapping[str, Any], named: Named, target: TargetConfig, where: str) -> int:
    """As declared, but for the target's own number, which some configs were copied with, beside one layer's weights."""
    declared = whole(config, "num_hidden_layers", where, 1)
    return 1 if declared == target.num_layers and layer_count(named) == 1 else declared


def _any(named: Named, part: str, *tensors: str) -> bool:
    """Whether a layer's part has one of these tensors; `problem_in_draft` then misses the others by name."""
    endings = tuple(f".{part}.{tensor}" for tensor in tensors)
    return any(name.startswith("layers.") and name.endswith(endings) for name in named)


def _head_dim(named: Named, heads: int) -> int:
    """By the first layer's q_proj; 0: it cannot be told."""
    q_proj = named.get("layers.0.self_attn.q_proj.weight")
    return 0 if q_proj is None or not q_proj.shape or q_proj.shape[0] % heads else q_proj.shape[0] // heads


def _taps(config: Mapping[str, Any], target: TargetConfig) -> tuple[tuple[int, ...], str]:
    """The boundaries, and where they are from."""
    ids, nested = config.get(TAP_IDS), False
    if not ids:
        ids, nested = (config.get(EAGLE_CONFIG) or {}).get(TAP_IDS), True
    if not ids:
        return (2, target.num_layers // 2, target.num_layers - 3), "the usual ones: its config names none"
    if not isinstance(ids, list) or any(type(i) is not int for i in ids):
        raise CheckpointError(
            f"The draft's {TAP_IDS} {ids!r} are not layer numbers.", "Name the boundaries with --taps."
        )
    if nested and ids[0] == 1:
        return tuple(i + 1 for i in ids), f"its config names the outputs of layers {', '.join(map(str, ids))}"
    return tuple(ids), "as its config has them"


def _check_taps(draft: DraftConfig, config: Mapping[str, Any], named: Named, target: TargetConfig, where: str) -> None:
    count = whole(config, "num_aux_hidden_states", where, len(draft.taps))
    problem = problem_in_taps(draft.taps, target.num_layers)
    if not problem and count != len(draft.taps):
        problem = f"num_aux_hidden_states is {count}, and there are {len(draft.taps)} taps"
    shape = named["fc.weight"].shape if "fc.weight" in named else ()
    if not problem and len(shape) == 2 and shape[1] != draft.tap_width and shape[1] % draft.target_hidden_size == 0:
        problem = f"fc.weight reads {shape[1] // draft.target_hidden_size} taps, and there are {len(draft.taps)}"
    if problem:
        raise CheckpointError(f"{where}: {problem}.", "Name the boundaries with --taps.")


def _with_head(
    named: Named, draft: DraftConfig, config: Mapping[str, Any], target: TargetConfig, where: str
) -> tuple[Named, DraftConfig]:
    """A head that is missing is the draft's own embedding where that is tied, else the target's head."""
    if HEAD in named:
        return named, draft
    if config.get("tie_word_embeddings") and draft.own_embedding:
        return {**named, HEAD: named[DRAFT_EMBEDDING]}, draft
    if (draft.draft_vocab_size, draft.hidden_size) != (target.vocab_size, target.hidden_size):
        raise CheckpointError(f"{where}: {HEAD} is missing, and the target's does not fit.", OTHER)
    if config.get("tie_word_embeddings") and not target.tie_embeddings:
        what = f"{HEAD} is missing and tied to the target's embedding, which is not the target's head"
        raise CheckpointError(
            f"{where}: {what}.", "Delete tie_word_embeddings from config.json to use the target's head."
        )
    return named, replace(draft, own_head=False)


def _tensors(named: Named, draft: DraftConfig, target: TargetConfig, where: str) -> tuple[LazyTensor, ...]:
    """What goes into the bundle, under canonical names."""
    ids = target_ids(named, draft.draft_vocab_size, target.vocab_size, where)
    left = {OFFSETS, MASK} if draft.own_embedding else {OFFSETS, MASK, DRAFT_EMBEDDING}
    kept = [replace(tensor, name=name) for name, tensor in named.items() if name not in left]
    return (LazyTensor(TARGET_IDS, "I64", ids.shape, ids.astype("<i8").tobytes), *kept)
