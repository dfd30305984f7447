"""Which device and number format a bundle runs on with MLX. Knows no model."""

from __future__ import annotations

import shutil

import mlx.core as mx

from eagle3chat.engine.config import Manifest
from eagle3chat.engine.errors import BackendError

DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16, "int4": mx.bfloat16}


def pick_device(name: str) -> mx.Device:
    """The device of "cpu", "gpu" or "auto" (MLX's own choice: a GPU where it has one).

    Raises:
        BackendError: It is not one of these, or MLX has no GPU here.
    """
    if name == "auto":
        return mx.default_device()
    if name not in ("cpu", "gpu"):
        raise BackendError(f"The MLX backend has no device '{name}'.", "Use auto, cpu or gpu.")
    if name == "gpu" and not mx.is_available(mx.gpu):
        raise BackendError("MLX sees no GPU on this machine.", "Use --device cpu.")
    return mx.Device(mx.cpu if name == "cpu" else mx.gpu, 0)


def has_metal() -> bool:
    """Whether MLX computes on an Apple GPU here."""
    return bool(mx.metal.is_available())


def is_gpu(device: mx.Device) -> bool:
    """Whether it is one."""
    return device.type == mx.gpu


def spare_compiler(device: mx.Device) -> None:
    """Do without fused operations where they cannot be made: on a CPU, MLX makes them with g++ while it runs."""
    if not is_gpu(device) and shutil.which("g++") is None:
        mx.disable_compile()


def pick_dtype(name: str, manifest: Manifest, device: mx.Device) -> str:
    """The number format of "auto", "float32", "bfloat16", "float16" or "int4".

    Weights that the bundle has quantised stay so in each of them; the format is that of the activations and of all
    other weights. "int4" is bfloat16 with a 4-bit bundle, and the draft's matrices have 4 or 8 bits too. "auto" is
    that, or bfloat16 for other bundles, on a GPU, and float32 on a CPU.

    Raises:
        BackendError: There is no such format, or int4 is asked of a bundle without 4-bit weights.
    """
    small = manifest.quantization is not None and manifest.quantization.bits == 4
    if name == "auto":
        return "float32" if not is_gpu(device) else "int4" if small else "bfloat16"
    if name not in DTYPES:
        raise BackendError(f"There is no dtype '{name}'.", "Use auto, float32, bfloat16, float16 or int4.")
    if name == "int4" and not small:
        raise BackendError(
            f"The target {manifest.name} has no 4-bit weights, so int4 is not possible.", "Use --dtype bfloat16."
        )
    return name
