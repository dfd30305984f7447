"""The tensors of a Hugging Face directory's text model, dense or in MLX affine form, whatever they are quantised with.

    ExecuTorch HQQ-INT4    hqq_source.py          by its header's metadata; config.json says nothing of it
    AWQ, GPTQ              awq_source.py, gptq_source.py
    compressed-tensors     compressed_source.py   "pack-quantized"
    MLX affine, dense      as they are

Knows no config but `quantization_config`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eagle3chat.engine.affine_source import Converted
from eagle3chat.engine.awq_source import awq_tensors
from eagle3chat.engine.compressed_source import compressed_tensors
from eagle3chat.engine.draft_files import read_weights
from eagle3chat.engine.errors import CheckpointError
from eagle3chat.engine.gptq_source import gptq_tensors
from eagle3chat.engine.hf_names import text_name
from eagle3chat.engine.hqq_source import TENSOR_NAMES, hqq_tensors
from eagle3chat.engine.tensor_file import LazyTensor, read_header

Named = Mapping[str, LazyTensor]
OTHER = "Use a dense checkpoint, or one in MLX's affine layout."
CONVERTERS: Mapping[str, Callable[[Named, Mapping[str, Any], str], Converted]] = {
    "awq": awq_tensors,
    "gptq": gptq_tensors,
    "compressed-tensors": compressed_tensors,
}
"""By quant_method."""


@dataclass(frozen=True, slots=True)
class HfWeights:
    """What was found."""

    converted: Converted  # `forms` is empty where nothing was converted
    files: tuple[Path, ...]
    names: frozenset[str]  # of all that is in them


def read_hf_weights(path: Path, values: Mapping[str, Any]) -> HfWeights:
    """Read a directory.

    Args:
        values: Its config.json.

    Raises:
        CheckpointError: A tensor or the quantisation is not known.
        BundleError: A file is missing or damaged, or an index and its files disagree.
    """
    raw, files = read_weights(path)
    metadata: dict[str, str] = {}
    for file in files:
        if file.suffix == ".safetensors":
            metadata |= _joined(metadata, read_header(file).metadata)
    where = str(path)
    if TENSOR_NAMES in metadata:
        return HfWeights(hqq_tensors(raw, metadata, where), files, frozenset(raw))
    stored = _text_tensors(raw, where)
    settings = values.get("quantization_config") or {}
    convert = CONVERTERS.get(settings.get("quant_method") or "" if isinstance(settings, dict) else "")
    converted = Converted(stored) if convert is None else convert(stored, settings, where)
    return HfWeights(converted, files, frozenset(raw))


def _joined(first: Mapping[str, str], second: Mapping[str, str]) -> dict[str, str]:
    """Metadata of two shards: a list of names in both is one list."""
    joined = {**first, **second}
    if TENSOR_NAMES in first and TENSOR_NAMES in second:
        names = [*json.loads(first[TENSOR_NAMES]), *json.loads(second[TENSOR_NAMES])]
        joined[TENSOR_NAMES] = json.dumps(list(dict.fromkeys(names)))
    return joined


def _text_tensors(raw: Named, where: str) -> dict[str, LazyTensor]:
    """By their names in the text model."""
    stored: dict[str, LazyTensor] = {}
    for name, tensor in raw.items():
        inner = text_name(name)
        if inner in stored:
            raise CheckpointError(f"{where}: the tensor {inner} is there under two names.", OTHER)
        if inner:
            stored[inner] = replace(tensor, name=inner)
    return stored
