"""From a draft's own tensor names to the canonical ones of layout.py.

    prefix                 `model.` and `draft_model.` go
    first layer            `midlayer.` (EAGLE, SpecForge) is `layers.0.` (speculators, ModelOpt)
    layers after it        `additional_layers.i.` (SGLang) is `layers.{i + 1}.`, whose first norm, called
                           `hidden_norm` there, is `input_layernorm`

Knows names only, no shapes and no config.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from eagle3chat.engine.errors import BundleError, CheckpointError
from eagle3chat.engine.tensor_file import DAMAGED, LazyTensor

PREFIXES = ("model.", "draft_model.")
FIRST = "midlayer."
OTHER = "Use another draft."
_FOREIGN = (
    (re.compile(r"lora_"), "part of an adapter (LoRA), which is not known here"),
    (
        re.compile(r"mask_hidden|parallel_draft"),
        "part of a parallel draft (P-EAGLE), which is another kind of proposer",
    ),
    (re.compile(r"self_attn\.(q_a|q_b|kv_a|kv_b)_"), "part of latent attention (MLA), which is not known for drafts"),
    (
        re.compile(r"_scale(_inv|_2)?$|\.(qweight|qzeros)$|weight_packed$"),
        "part of a quantised draft; only plain weights and MLX's affine ones are known",
    ),
    (re.compile(r"mlp\.(experts|router|gate)\."), "part of a mixture of experts, which is not known for drafts"),
)


def canonical(stored: Mapping[str, LazyTensor], where: str) -> dict[str, LazyTensor]:
    """The tensors under their canonical names; what is known to be of no use is left out.

    Raises:
        CheckpointError: A tensor's name gives away another kind of draft.
        BundleError: Two tensors have one name.
    """
    renamed: dict[str, LazyTensor] = {}
    for own, tensor in stored.items():
        name = canonical_name(own)
        if name.startswith("verifier_") or name.endswith("rotary_emb.inv_freq"):
            continue
        for pattern, what in _FOREIGN:
            if pattern.search(name):
                raise CheckpointError(f"{where}: the tensor {own} is {what}.", OTHER)
        if name in renamed:
            raise BundleError(where, f"two tensors are called {name} in other words", DAMAGED)
        renamed[name] = tensor
    return renamed


def canonical_name(name: str) -> str:
    """One name."""
    while name.startswith(PREFIXES):
        name = name.partition(".")[2]
    if name.startswith(FIRST):
        return f"layers.0.{name.removeprefix(FIRST)}"
    later = re.fullmatch(r"(additional_layers|layers)\.(\d+)\.(.+)", name)
    if later is None:
        return name
    kind, digits, rest = later.groups()
    index = int(digits) + (kind == "additional_layers")
    if index and rest == "hidden_norm.weight":
        rest = "input_layernorm.weight"
    return f"layers.{index}.{rest}"


def layer_count(names: Collection[str]) -> int:
    """How many layers canonical names belong to, by the highest of their numbers."""
    numbers = [re.match(r"layers\.(\d+)\.", name) for name in names]
    return max((int(number[1]) + 1 for number in numbers if number), default=0)
