"""Which device and number format a bundle runs on, the kernels' threads, and a clock without a wait. Knows no model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.util import find_spec

import torch
from torch import Tensor

from eagle3chat.engine.config import Manifest
from eagle3chat.engine.errors import BackendError
from eagle3chat.engine.torch_linear import INT4_GROUPS
from eagle3chat.kernels import cpu

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int4": torch.bfloat16}


def start_kernels(threads: int) -> None:
    """Give the compiled kernels so many threads.

    Raises:
        BackendError: The environment names a variant of them that this machine does not have.
    """
    try:
        cpu.set_threads(threads)
    except ValueError as error:
        raise BackendError(str(error), "Change or unset it.") from error


def pick_device(name: str) -> torch.device:
    """The device of "cpu", "cuda", "cuda:N" or "auto" (CUDA where there is one).

    Raises:
        BackendError: It is not one of these, or this machine has none.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()):
        raise BackendError(f"The torch backend has no device '{name}'.", "Use auto, cpu, cuda or cuda:N.")
    if kind == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(index or 0) >= count:
        raise BackendError(f"The device '{name}' is not there: torch sees {count} CUDA devices.", "Use --device cpu.")
    return torch.device(name)


def pick_dtype(name: str, manifest: Manifest, device: torch.device) -> str:
    """The number format of "auto", "float32", "bfloat16" or "int4".

    "auto" is int4 for a 4-bit bundle on a CPU (fastest there), bfloat16 on CUDA, and float32 for a dense bundle
    on a CPU (not every CPU computes in bfloat16).

    Raises:
        BackendError: int4 is not possible with this bundle or on this device.
    """
    made = manifest.quantization
    small = made is not None and made.bits == 4 and made.group_size in INT4_GROUPS
    if name == "auto":
        return "bfloat16" if device.type == "cuda" else "int4" if small else "float32"
    if name not in DTYPES:
        raise BackendError(f"There is no dtype '{name}'.", "Use auto, float32, bfloat16 or int4.")
    if name == "int4" and not small:
        raise BackendError(
            f"The target {manifest.name} has no 4-bit weights, so int4 is not possible.", "Use --dtype bfloat16."
        )
    if name == "int4" and device.type != "cpu" and find_spec("triton") is None:
        raise BackendError("int4 on a GPU needs triton.", "Use --dtype bfloat16, or install triton.")
    return name


def upload(values: Sequence[int] | Sequence[Sequence[int]], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A small tensor of host values on the device, without a wait: through pinned memory on CUDA."""
    made = torch.tensor(values, dtype=dtype)
    return made if device.type == "cpu" else made.pin_memory().to(device, non_blocking=True)


class Mark:
    """A moment on a device: wall time on a CPU, an event in the stream on CUDA."""

    __slots__ = ("_event", "_time")

    def __init__(self, device: torch.device) -> None:
        self._event = None
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True)
            self._event.record()
        self._time = time.perf_counter()

    def until(self, later: Mark) -> float:
        """Seconds to a later moment, which must have passed."""
        if self._event is not None and later._event is not None:
            return float(self._event.elapsed_time(later._event)) / 1000.0
        return later._time - self._time
