"""What a bench runs on: processor, threads, library, and a meter of the pair's device.

Knows which library has which meter. The libraries are asked only where the pair has loaded them.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from eagle3chat.engine.events import Info
from eagle3chat.engine.meter import Meter, ProcessMeter
from eagle3chat.engine.pair import Pair


@dataclass(frozen=True, slots=True)
class Machine:
    """What the figures were measured on."""

    cpu: str
    cores: int  # that this process may use
    threads: int | None  # that compute; None: the library does not tell
    library: str | None  # the tensor library and its version; None: there is none


def this_machine(pair: Pair) -> Machine:
    """The processor, and the library of an open pair."""
    backend = pair.info.backend
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Machine(
        cpu=_cpu_name(),
        cores=cores,
        threads=getattr(pair.backend, "threads", None),
        library=f"{backend} {version(backend)}" if backend in ("torch", "mlx") else None,
    )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def meter_of(info: Info, machine: Machine) -> Meter:
    """The meter of an open pair's device."""
    if info.backend == "torch":
        from eagle3chat.engine.torch_meter import TorchMeter

        meter: Meter = TorchMeter(info.device, machine.threads or 1)
        return meter
    if info.backend == "mlx":
        from eagle3chat.engine.mlx_meter import MlxMeter

        meter = MlxMeter(info.device)
        return meter
    return ProcessMeter()
