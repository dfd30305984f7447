"""What `doctor` says about the machine: system, processor, memory, its measured bandwidth, the compiled kernels."""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from eagle3chat import __version__
from eagle3chat.doctor import Finding

BUFFER = 256 << 20  # bytes; above any cache
SHARE = 8  # of the free memory at most this part is taken
PASSES = 3  # the fastest counts
NEEDS = {
    "avx2": ("avx2", "fma", "f16c"),
    "avx512": ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"),
}
X86 = ("x86_64", "AMD64")
ARM = ("aarch64", "arm64")


def machine() -> Iterator[Finding]:
    """System, processor, memory and how fast it is read."""
    from eagle3chat.info_command import available_bytes
    from eagle3chat.ui.figures import size

    yield Finding("machine", "eagle3chat", __version__)
    yield Finding("machine", "python", f"{platform.python_version()} ({platform.python_implementation()})")
    yield Finding("machine", "system", f"{platform.system()} {platform.release()} {platform.machine()}")
    yield Finding("machine", "processor", f"{_processor()}, {usable_cores()} cores usable of {os.cpu_count()}")
    free = available_bytes()
    if free is None:
        yield Finding("machine", "memory", "unknown", "off", "the system does not say")
    else:
        yield Finding("machine", "memory", f"{size(free)} free")
    yield bandwidth(BUFFER if free is None else min(BUFFER, free // SHARE))


def bandwidth(buffer: int) -> Finding:
    """How fast all usable cores read memory together: the limit of plain decoding on a CPU."""
    try:
        import numpy as np
    except ImportError:
        return Finding("machine", "bandwidth", "not measured", "off", "numpy is not installed")
    cores = usable_cores()
    parts = np.array_split(np.ones(buffer // 8, np.int64), cores)
    best = min(_pass(parts) for _ in range(PASSES))
    return Finding("machine", "bandwidth", f"{buffer / best / 1e9:.1f} GB/s read by {cores} threads")


def _pass(parts: Sequence[Any]) -> float:
    """Seconds in which every part is read once, each by a thread of its own."""
    threads = [threading.Thread(target=part.max) for part in parts]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_flags() -> frozenset[str]:
    """What /proc/cpuinfo says that the processor can; empty where there is none."""
    return frozenset(_cpuinfo("flags").split())


def _processor() -> str:
    return _cpuinfo("model name") or platform.processor() or "unknown processor"


def _cpuinfo(key: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.split(":")[0].strip() == key), "")


def kernels() -> Iterator[Finding]:
    """The compiled kernels: each variant, and why it is not used."""
    from eagle3chat.kernels import cpu

    wish = os.environ.get(cpu.SWITCH, "")
    try:
        there, used = cpu.variants(), cpu.variant()
    except ValueError as error:
        yield Finding("kernels", "compiled", "off", "bad", f"{error}")
        return
    if used is None:
        yield Finding("kernels", "compiled", "off", "off", _why_no_library(wish))
        return
    built = next(Path(cpu.__file__).parent.glob("_cpu*"), Path())
    yield Finding("kernels", "compiled", f"{used.name.lower()} of {built.name}")
    for variant in cpu.Variant:
        name = variant.name.lower()
        if variant is used:
            continue
        why = _why_not(name, variant in there, f"{cpu.SWITCH}={wish}" if wish else "")
        yield Finding("kernels", name, "not used", "off", why)


def _why_no_library(wish: str) -> str:
    if wish.strip().lower() == "off":
        return "EAGLE3CHAT_KERNELS=off; torch's own kernels serve"
    return "not built (no C++ compiler at install?), or built for another machine; torch's own kernels serve"


def _why_not(name: str, there: bool, forced: str) -> str:
    if there:
        return f"{forced} asks for another" if forced else "a faster one is used"
    arm = platform.machine() in ARM
    if name == "neon":
        return "built without the dot product" if arm else "this is no ARM processor"
    if platform.machine() not in X86:
        return "this is no x86-64 processor"
    lacking = [flag for flag in NEEDS[name] if flag not in cpu_flags()]
    if sys.platform == "linux" and lacking:
        return f"the processor lacks {', '.join(lacking)}"
    return "the processor lacks some of " + ", ".join(NEEDS[name])
