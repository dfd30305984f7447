"""Names of tensors and modules in Hugging Face checkpoints: which are the text model's, and what it calls them.

A model of pictures and sound has its text model under a prefix: `model.language_model.` (transformers) or
`language_model.model.` (older ones and MLX programs), the head beside it. Knows no shapes.
"""

from __future__ import annotations

from eagle3chat.engine.config import TargetConfig

_OTHERS = (
    "vision_tower.",
    "vision_embedder.",
    "embed_vision.",
    "multi_modal_projector.",
    "audio_tower.",
    "embed_audio.",
)
_COMPUTED = ".rotary_emb.inv_freq"
_INNER = "language_model."


def text_name(name: str) -> str:
    """The name within the text model of a tensor or a module; empty: it is of another part, or computed anew."""
    inner = name.removeprefix("model.")
    if inner.startswith(_OTHERS) or name.endswith(_COMPUTED):
        return ""
    if not inner.startswith(_INNER):
        return name
    inner = inner.removeprefix(_INNER)
    return inner if inner.split(".", 1)[0] in ("model", "lm_head") else f"model.{inner}"


def unused(config: TargetConfig) -> tuple[str, ...]:
    """Beginnings of names that checkpoints have and the model never reads: keys and values of layers that share."""
    first = config.num_layers - config.shared_kv_layers
    layers = (f"model.layers.{index}.self_attn" for index in range(first, config.num_layers))
    return tuple(f"{layer}.{part}." for layer in layers for part in ("k_proj", "v_proj", "k_norm", "v_norm"))
