"""AWQ checkpoints (AutoAWQ's "gemm" layout) to MLX affine form, exactly: w = scale * (u - z), z a whole number.

    qweight I32 [K, N/8]    along N; nibble i of a word is column (0, 2, 4, 6, 1, 3, 5, 7)[i]
    qzeros  I32 [K/g, N/8]  the same order
    scales  F16 [K/g, N]

A float16 times a number below 16 needs 15 bits, so the biases are float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from eagle3chat.engine.affine import pack, unpack
from eagle3chat.engine.affine_source import Array, Codes, Converted, array_of, product
from eagle3chat.engine.errors import CheckpointError
from eagle3chat.engine.tensor_file import LazyTensor

NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)
"""The nibble of a word that each of its 8 columns is in."""
PARTS = ("qweight", "qzeros", "scales")
OTHER = "Use another checkpoint of this model."


def awq_tensors(stored: Mapping[str, LazyTensor], settings: Mapping[str, Any], where: str) -> Converted:
    """The target in a directory of this kind.

    Args:
        settings: `quantization_config` of its config.json.

    Raises:
        CheckpointError: Its layout is another one, or a tensor is missing or misshapen.
    """
    version, bits = str(settings.get("version") or "gemm").lower(), settings.get("bits", settings.get("w_bit"))
    if version != "gemm" or bits != 4:
        raise CheckpointError(f"{where}: AWQ of the version {version!r} with {bits} bits is not known.", OTHER)
    made = Converted()
    for name, tensor in stored.items():
        module, _, leaf = name.rpartition(".")
        if leaf == "qweight":
            made.add(module, _codes(stored, module, where), where)
        elif leaf not in PARTS:
            made.tensors[name] = tensor
    return made


def _codes(stored: Mapping[str, LazyTensor], module: str, where: str) -> Codes:
    missing = [part for part in PARTS if f"{module}.{part}" not in stored]
    if missing:
        raise CheckpointError(f"{where}: the tensor {module}.{missing[0]} is missing.", OTHER)
    weight, zeros, scales = (stored[f"{module}.{part}"] for part in PARTS)
    shapes = f"{list(weight.shape)}, {list(zeros.shape)}, {list(scales.shape)}"
    if any(len(part.shape) != 2 or 0 in part.shape for part in (weight, zeros, scales)) or weight.dtype != "I32":
        raise CheckpointError(f"{where}: {module} has parts of the shapes {shapes}, which is not AWQ.", OTHER)
    (columns, packed), (count, rows) = weight.shape, scales.shape
    if rows != 8 * packed or zeros.shape != (count, packed) or columns % count:
        raise CheckpointError(f"{where}: {module} has parts of the shapes {shapes}, which is not AWQ.", OTHER)
    return Codes(
        shape=(rows, columns),
        group=columns // count,
        bits=4,
        words=lambda: pack(np.ascontiguousarray(_opened(weight).T), 4),
        scales=lambda: array_of(scales).T,
        biases=lambda: product(array_of(scales).T, -_opened(zeros).T.astype(np.float64)),
        scale_type=scales.dtype,
        bias_type="F32",
    )


def _opened(packed: LazyTensor) -> Array:
    """Codes U8 [R, C] of words [R, C/8]."""
    nibbles = unpack(array_of(packed).view("<u4"), 4)
    return nibbles.reshape(len(nibbles), -1, 8)[:, :, NIBBLES].reshape(nibbles.shape)
