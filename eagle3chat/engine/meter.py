"""What this process holds in memory, and how fast a machine reads it: the values, and what the system itself tells.

Each tensor library measures on its own devices, in torch_meter.py and mlx_meter.py. Knows no model.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

LEAST_BUFFER = 1 << 28  # bytes that a read goes over; more where the caches are larger than a quarter of it
MOST_BUFFER = 1 << 30
PASSES = 25  # over the buffer; the fastest counts, since it is a ceiling that is asked for
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """How fast memory is read."""

    bytes_per_second: float  # of the fastest pass
    median_bytes_per_second: float
    buffer_bytes: int
    passes: int
    how: str

    @classmethod
    def of(cls, size: int, seconds: Sequence[float], buffer: int, how: str) -> Bandwidth:
        """From passes that move `size` bytes each."""
        return cls(size / min(seconds), size / statistics.median(seconds), buffer, len(seconds), how)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes in use. The device's are what the library's allocator holds there; None: not known, or no device."""

    resident: int | None  # the process, now
    peak_resident: int | None  # the process since it began, loading included
    device: int | None = None
    peak_device: int | None = None


class Meter(Protocol):
    """Measures the device of an open pair."""

    def bandwidth(self) -> Bandwidth | None:
        """Read a buffer larger than the caches; None: there is no such device."""

    def memory(self) -> Memory:
        """What is in use now, and the most so far."""


class ProcessMeter:
    """Of a pair without a tensor library."""

    def bandwidth(self) -> None:
        """Nothing to read with."""

    def memory(self) -> Memory:
        """Of the process alone."""
        return Memory(resident_bytes(), peak_resident_bytes())


def resident_bytes() -> int | None:
    """The process's resident set now; None where the system has no /proc."""
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return None
    line = next((line for line in text.splitlines() if line.startswith("VmRSS:")), "")
    return int(line.split()[1]) * 1024 if line else None


def peak_resident_bytes() -> int | None:
    """The largest resident set since the process began; None on a system without getrusage."""
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage(2): bytes there, kilobytes on Linux
    counted = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return max(counted, resident_bytes() or 0)  # the kernel brings its counter up to date now and then


def largest_cache_bytes(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """The largest cache of the first core; 0: the system does not tell."""
    sizes = []
    for file in root.glob("index*/size"):
        text = file.read_text(encoding="ascii").strip()
        number, unit = text.rstrip("KMG"), text[-1:]
        if number.isdigit():
            sizes.append(int(number) * _UNITS.get(unit, 1))
    return max(sizes, default=0)


def buffer_bytes() -> int:
    """How large a buffer must be that a read of it is not served by caches."""
    return min(max(LEAST_BUFFER, 4 * largest_cache_bytes()), MOST_BUFFER)
