"""Architectures of GGUF files: what their tensors are called in a bundle, and what the name of one says without saying.

Source: the gguf package's tables of tensors, and llama.cpp's converter for what it moves. Knows no values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from eagle3chat.engine.errors import CheckpointError

OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
QK_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
BIASES = ("attn_q", "attn_k", "attn_v")


@dataclass(frozen=True, slots=True)
class Architecture:
    """Of a file, by its `general.architecture`, which is also the family's name here."""

    paired: bool = False  # rows of q and k stand so that a rotary pair is two neighbours
    attention_bias: bool = False
    qk_norm: bool = False


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(paired=True),
    "qwen2": Architecture(attention_bias=True),
    "qwen3": Architecture(qk_norm=True),
}


def architecture_of(name: object, where: str) -> Architecture:
    """A known architecture.

    Raises:
        CheckpointError: It is another one; `where` names the file.
    """
    if not isinstance(name, str) or name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise CheckpointError(f"{where}: the architecture {name!r} is not known.", f"Known: {known}.")
    return ARCHITECTURES[name]


def bundle_name(name: str, kind: Architecture, family: str, where: str) -> str:
    """What a tensor is called in a bundle.

    Raises:
        CheckpointError: The architecture has no such tensor.
    """
    *path, leaf = name.split(".")
    if leaf == "weight" and len(path) == 1 and path[0] in OUTER:
        return f"{OUTER[path[0]]}.weight"
    inner = INNER | (QK_NORMS if kind.qk_norm else {})
    biases = BIASES if kind.attention_bias else ()
    inside = len(path) == 3 and path[0] == "blk" and path[1].isdecimal() and path[2] in inner
    if inside and (leaf == "weight" or (leaf == "bias" and path[2] in biases)):
        return f"model.layers.{int(path[1])}.{inner[path[2]]}.{leaf}"
    raise CheckpointError(f"{where}: the tensor {name} is not known in a {family} model.", "Use another file.")
