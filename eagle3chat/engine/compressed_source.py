"""compressed-tensors checkpoints of the format "pack-quantized" (llm-compressor) to MLX affine form, exactly.

    weight_packed      I32 [N, K*bits/32]  codes with half of their range added: MLX's words as they stand
    weight_scale       [N, K/g]
    weight_zero_point  I32 [N*bits/32, K/g], along N, half of the range added too; absent where it is symmetric
    weight_shape       I64 [2]
    weight_g_idx       [K] where the columns were ordered by activation

Symmetric: w = scale * (u - half), whose bias only shifts the scale's exponent and keeps its type. Else w = scale *
(u - z), with float32 biases.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from eagle3chat.engine.affine import unpack
from eagle3chat.engine.affine_source import Array, Codes, Converted, array_of, product
from eagle3chat.engine.errors import CheckpointError
from eagle3chat.engine.tensor_file import LazyTensor

FORMAT = "pack-quantized"
WIDTHS = (4, 8)
PACKED = "weight_packed"
PARTS = (PACKED, "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx")
OTHER = "Use another checkpoint of this model."


def compressed_tensors(stored: Mapping[str, LazyTensor], settings: Mapping[str, Any], where: str) -> Converted:
    """The target in a directory of this kind.

    Args:
        settings: `quantization_config` of its config.json.

    Raises:
        CheckpointError: Its layout is another one, or a tensor is missing or misshapen.
    """
    form = settings.get("format")
    if form != FORMAT:
        raise CheckpointError(f"{where}: compressed-tensors of the format {form!r} are not known.", OTHER)
    for key in ("transform_config", "sparsity_config", "kv_cache_scheme"):
        if settings.get(key):
            raise CheckpointError(f"{where}: {key} of compressed-tensors is not known here.", OTHER)
    for group in (settings.get("config_groups") or {}).values():
        if isinstance(group, dict) and group.get("input_activations"):
            raise CheckpointError(f"{where}: quantised activations are not known here.", OTHER)
    made = Converted()
    for name, tensor in stored.items():
        module, _, leaf = name.rpartition(".")
        if leaf == PACKED:
            made.add(module, _codes(stored, module, where), where)
        elif leaf not in PARTS:
            made.tensors[name] = tensor
    return made


def _codes(stored: Mapping[str, LazyTensor], module: str, where: str) -> Codes:
    for part in (PACKED, "weight_scale", "weight_shape"):
        if f"{module}.{part}" not in stored:
            raise CheckpointError(f"{where}: the tensor {module}.{part} is missing.", OTHER)
    if f"{module}.weight_g_idx" in stored:
        raise CheckpointError(f"{where}: {module} has its columns out of order (actorder).", OTHER)
    packed, scale = stored[f"{module}.{PACKED}"], stored[f"{module}.weight_scale"]
    zero = stored.get(f"{module}.weight_zero_point")
    rows, columns = (int(n) for n in array_of(stored[f"{module}.weight_shape"]).reshape(-1)[:2])
    bits = packed.shape[-1] * 32 // columns if columns > 0 else 0
    fits = bits in WIDTHS and packed.shape == (rows, columns * bits // 32) and packed.dtype == "I32"
    fits = fits and len(scale.shape) == 2 and scale.shape[0] == rows and columns % (scale.shape[1] or columns + 1) == 0
    if fits and zero is not None:
        fits = zero.shape == (-(-rows * bits // 32), scale.shape[1])
    if not fits:
        shapes = f"{list(packed.shape)} and {list(scale.shape)} for {rows} x {columns}"
        raise CheckpointError(f"{where}: {module} has parts of the shapes {shapes}, which are not known.", OTHER)
    half = 2 ** (bits - 1)

    def points() -> Array | float:
        if zero is None:
            return -float(half)
        words = np.ascontiguousarray(array_of(zero).view("<u4").T)
        return -unpack(words, bits)[:, :rows].T.astype(np.float64)

    return Codes(
        shape=(rows, columns),
        group=columns // scale.shape[1],
        bits=bits,
        words=lambda: np.frombuffer(packed.read(), "<u4"),
        scales=lambda: array_of(scale),
        biases=lambda: product(array_of(scale), points()),
        scale_type=scale.dtype,
        bias_type=scale.dtype if zero is None else "F32",
    )
