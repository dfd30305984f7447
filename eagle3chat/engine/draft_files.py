"""The weights in a directory of a draft or a target, under the names that they have there.

    model.safetensors               or the shards of model.safetensors.index.json, which must hold what it says
    pytorch_model.bin               or the shards of its index, where no safetensors are; see torch_pickle.py

Knows no tensor by name. What is no plain set of weights is refused: an adapter, a form that another file describes.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle3chat.engine.bundle import INDEX, index_map, read_tensors, tensor_files
from eagle3chat.engine.errors import BundleError, CheckpointError
from eagle3chat.engine.hf_values import read_json
from eagle3chat.engine.tensor_file import DAMAGED, LazyTensor, TensorInfo

PICKLE = "pytorch_model.bin"
QUANTIZED = "hf_quant_config.json"
OTHER = "Use a checkpoint with plain weights."


def read_weights(path: Path) -> tuple[dict[str, LazyTensor], tuple[Path, ...]]:
    """The tensors of the directory `path` by name, and the files that hold them.

    Raises:
        CheckpointError: They are not plain weights, or in a pickle that holds more than tensors.
        BundleError: A file is missing or damaged, two hold one tensor, or an index and its files disagree.
    """
    _refuse_extras(path)
    if any(path.glob("*.safetensors")) or (path / INDEX).is_file() or not any(path.glob("*.bin*")):
        stored = read_tensors(path)
        if (path / INDEX).is_file():
            _check_index(path / INDEX, stored)
        lazy = {name: LazyTensor(name, i.dtype, i.shape, i.read, i.part) for name, i in stored.items()}
        return lazy, tensor_files(path)
    return _read_pickles(path)


def _refuse_extras(path: Path) -> None:
    for pattern in ("adapter_model.*", "adapter_config.json"):
        for file in sorted(path.glob(pattern)):
            raise CheckpointError(f"{file} is part of an adapter (LoRA), which is not known here.", OTHER)
    if (path / QUANTIZED).is_file():
        quantization = read_json(path / QUANTIZED).get("quantization")
        kind = quantization.get("quant_algo") if isinstance(quantization, dict) else quantization
        if kind is not None:
            raise CheckpointError(f"{path / QUANTIZED}: the weights are quantised ({kind}).", OTHER)


def _check_index(index: Path, stored: Mapping[str, TensorInfo]) -> None:
    named = index_map(index)
    for name, info in stored.items():
        if named.get(name) != info.path.name:
            what = f"does not say that the tensor {name} is in {info.path.name}"
            raise BundleError(str(index), what, DAMAGED)
    for name, file in named.items():
        if name not in stored:
            raise BundleError(str(index.with_name(file)), f"does not hold the tensor {name} of the index", DAMAGED)


def _read_pickles(path: Path) -> tuple[dict[str, LazyTensor], tuple[Path, ...]]:
    files = tensor_files(path, PICKLE)
    if importlib.util.find_spec("torch") is None:
        fix = "Install eagle3chat[torch], or convert it to model.safetensors."
        raise CheckpointError(f"{files[0]} can only be read with torch, which is not installed.", fix)
    from eagle3chat.engine.torch_pickle import read_pickle

    tensors: dict[str, LazyTensor] = {}
    where: dict[str, Path] = {}
    for file in files:
        loaded: dict[str, Any] = read_pickle(file)
        for name, tensor in loaded.items():
            if name in tensors:
                raise BundleError(str(file), f"the tensor {name} is also in {where[name].name}", DAMAGED)
            tensors[name], where[name] = tensor, file
    return tensors, files
