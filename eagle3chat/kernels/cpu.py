"""The compiled CPU kernels as a library: found, loaded, told how many threads to use.

It is a plain C library beside this file, built when the package is installed and there is a C++ compiler.
EAGLE3CHAT_KERNELS=off hides it; a variant's name there forces that one. Knows no kernel: the cpu_* modules
bind their own functions.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from functools import cache
from pathlib import Path

SWITCH = "EAGLE3CHAT_KERNELS"


class Variant(IntEnum):
    """Instructions that the kernels can use; numbers as in src/variant.h."""

    PORTABLE = 0
    AVX2 = 1
    AVX512 = 2
    NEON = 3
    AVX512_BF16 = 4


@cache
def library() -> ctypes.PyDLL | None:
    """The kernels, or None where they were not built or are switched off.

    Calls keep the interpreter's lock: they last microseconds, and taking the lock back could cost more.

    Raises:
        ValueError: The environment variable names no variant of this CPU.
    """
    wish = os.environ.get(SWITCH, "").strip().lower()
    if wish == "off":
        return None
    path = next(Path(__file__).parent.glob("_cpu*.so"), None)
    if path is None:
        return None
    try:
        loaded = ctypes.PyDLL(str(path))
    except OSError:  # built for another machine
        return None
    if wish not in ("", "on"):
        names = [variant.name.lower() for variant in Variant if loaded.e3_has_variant(variant)]
        if wish not in names:
            raise ValueError(f"{SWITCH}={wish}: this CPU has {', '.join(names)}; 'off' turns the kernels off.")
        loaded.e3_use_variant(Variant[wish.upper()])
    return loaded


def variants() -> list[Variant]:
    """What this CPU and build can use; empty without the library."""
    loaded = library()
    return [] if loaded is None else [variant for variant in Variant if loaded.e3_has_variant(variant)]


def variant() -> Variant | None:
    """The one in use, or None without the library."""
    loaded = library()
    return None if loaded is None else Variant(loaded.e3_variant())


@contextmanager
def forced(wanted: Variant, threads: int | None = None) -> Iterator[None]:
    """Uses another variant, and another number of threads, inside the block; for tests.

    Raises:
        ValueError: Not here.
    """
    loaded = library()
    if loaded is None or not loaded.e3_has_variant(wanted):
        raise ValueError(f"The kernels' variant {wanted.name.lower()} is not available here.")
    before, count = loaded.e3_variant(), loaded.e3_threads()
    loaded.e3_use_variant(wanted)
    loaded.e3_set_threads(count if threads is None else threads)
    try:
        yield
    finally:
        loaded.e3_use_variant(before)
        loaded.e3_set_threads(count)


def set_threads(count: int) -> None:
    """Threads that share a kernel's work, the caller included. Nothing without the library."""
    loaded = library()
    if loaded is not None:
        loaded.e3_set_threads(count)


def describe() -> str:
    """One line for `info`."""
    loaded = library()
    if loaded is None:
        off = os.environ.get(SWITCH, "").strip().lower() == "off"
        return "off" if off else "not built (no C++ compiler at install); torch's own kernels serve"
    return f"{Variant(loaded.e3_variant()).name.lower()}, {loaded.e3_threads()} threads"
