"""A bundle's tensors as float64, whatever form they lie in. Reads files with the safetensors package alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from eagle3chat.engine.config import Quantization
from reference.numbers import Array

Stored = dict[str, npt.NDArray[np.generic]]


def read_weights(directory: Path, quantization: Quantization | None = None) -> dict[str, Array]:
    """All tensors of a directory's safetensors files: F32, F16, integers, or MLX affine of 4 or 8 bits."""
    stored: Stored = {}
    for file in sorted(directory.glob("*.safetensors")):
        stored |= load_file(file)
    parts = {name for name in stored if name.endswith((".scales", ".biases"))}
    weights = {name: tensor.astype(np.float64) for name, tensor in stored.items() if name not in parts}
    for module in sorted(name.removesuffix(".scales") for name in parts if name.endswith(".scales")):
        assert quantization is not None, module
        weights[f"{module}.weight"] = _multiplied(stored, module, quantization.group_size)
    return weights


def _multiplied(stored: Stored, module: str, group: int) -> Array:
    """An affine matrix: w = scales * u + biases; the first column lies in the lowest bits of a word."""
    words = stored[f"{module}.weight"]
    scales, biases = (stored[f"{module}.{part}"].astype(np.float64) for part in ("scales", "biases"))
    bits = words.shape[-1] * 32 // (scales.shape[-1] * group)
    assert bits in (4, 8), (module, bits)
    codes = np.stack([(words >> np.uint32(bits * i)) & np.uint32(2**bits - 1) for i in range(32 // bits)], -1)
    columns = codes.reshape(*words.shape[:-1], -1).astype(np.float64)
    return columns * np.repeat(scales, group, -1) + np.repeat(biases, group, -1)
