"""A file of torch.save as tensors, and nothing else: what could run code is never read.

torch's own restricted reader does it (`weights_only`). Files in the zip format are mapped, so a tensor costs memory
when it is read. Knows no tensor by name.
"""

from __future__ import annotations

import pickle
import warnings
import zipfile
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from eagle3chat.engine.errors import BundleError, CheckpointError
from eagle3chat.engine.tensor_file import DAMAGED, LazyTensor

DTYPES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.bool: "BOOL",
}
CONVERT = "Convert it to model.safetensors on a machine where you trust it."


def read_pickle(path: Path) -> dict[str, LazyTensor]:
    """The tensors of a state dict by name.

    Raises:
        CheckpointError: It holds more than named tensors.
        BundleError: It is damaged.
    """
    try:
        mapped = zipfile.is_zipfile(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the pickle's protocol: what cannot be read is told below
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} holds more than tensors{_culprit(path)}: reading it could run code.", CONVERT
        ) from error
    except (OSError, RuntimeError, EOFError, ValueError, KeyError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        what = f"cannot be read as a file of tensors ({reason})"
        raise BundleError(str(path), what, DAMAGED) from error
    if not isinstance(loaded, dict):
        raise CheckpointError(f"{path} holds a {type(loaded).__name__}, not named tensors.", CONVERT)
    return {str(name): _lazy(path, str(name), value) for name, value in loaded.items()}


def _culprit(path: Path) -> str:
    """The first thing that a restricted reader refuses, where torch can tell."""
    if not zipfile.is_zipfile(path):
        return ""
    found = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    return f" ({found[0]})" if found else ""


def _lazy(path: Path, name: str, value: object) -> LazyTensor:
    if not isinstance(value, Tensor) or value.layout != torch.strided or value.dtype not in DTYPES:
        kind = f"tensor of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
        raise CheckpointError(f"{path}: {name} is a {kind}, not a plain tensor.", CONVERT)
    flat = value.detach().contiguous().view(-1).view(torch.uint8)
    return LazyTensor(
        name, DTYPES[value.dtype], tuple(value.shape), partial(_bytes, flat, 0, None), partial(_bytes, flat)
    )


def _bytes(flat: Tensor, start: int, end: int | None) -> memoryview:
    return flat[start:end].numpy().data
