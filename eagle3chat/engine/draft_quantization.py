"""Which matrices of a draft's directory are stored in few bits: MLX's `quantization` object in config.json.

Scales beside a weight say that it is quantised, the object in what form: `group_size` and `bits` for all, or by module
under the module's own name, as mlx-lm writes them for targets. Knows names and numbers, no weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eagle3chat.engine.affine_source import Form, quantization_of
from eagle3chat.engine.config import Quantization
from eagle3chat.engine.draft_names import canonical_name
from eagle3chat.engine.errors import CheckpointError
from eagle3chat.engine.hf_values import whole
from eagle3chat.engine.layout import DRAFT_EMBEDDING
from eagle3chat.engine.tensor_file import LazyTensor

QUANTIZATION, COPY = "quantization", "quantization_config"
SCALES = ".scales"
OTHER = "Use a draft with plain weights, or one in MLX's affine layout."


def read_quantization(config: Mapping[str, Any], named: Mapping[str, LazyTensor], where: str) -> Quantization | None:
    """The forms of the matrices that have scales; None: there are none, or nothing is declared.

    Args:
        named: The tensors under their canonical names.

    Raises:
        CheckpointError: Another kind of quantisation, or the embedding's.
    """
    declared = config.get(QUANTIZATION)
    if config.get(COPY) not in (None, declared):
        raise CheckpointError(f"{where}: the setting {COPY} = {config[COPY]!r} is not known.", OTHER)
    if declared is None:
        return None
    if not isinstance(declared, dict):
        raise CheckpointError(f"{where}: {QUANTIZATION} is {declared!r}, and not an object.", OTHER)
    modules = [name.removesuffix(SCALES) for name in named if name.endswith(SCALES)]
    if DRAFT_EMBEDDING.removesuffix(".weight") in modules:
        raise CheckpointError(f"{where}: its embedding is quantised, which is not known for drafts.", OTHER)
    entries = {canonical_name(f"{name}.weight").removesuffix(".weight"): e for name, e in declared.items()}
    return quantization_of({module: _form(declared, entries.get(module), where) for module in modules})


def _form(declared: Mapping[str, Any], own: Any, where: str) -> Form:
    """Group size and bits of a module."""
    said = {**declared, **own} if isinstance(own, dict) else declared
    if said.get("mode", "affine") != "affine" or said.get("quant_method") is not None:
        kind = said.get("quant_method") or said["mode"]
        raise CheckpointError(f"{where}: the quantisation {kind!r} is not known for drafts.", OTHER)
    return whole(said, "group_size", where), whole(said, "bits", where)
