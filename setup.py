"""Builds the CPU kernels, where a C++ compiler is found; without one the install succeeds without them.

The library has a plain C interface and is loaded by path (see eagle3chat/kernels/cpu.py), so it includes no
header of Python or torch. Code for newer CPUs (AVX2, AVX512, AArch64's dot product) is marked function by function and
chosen when it runs: one build serves all machines of an architecture, and no flag names one.
"""

import sys
from pathlib import Path

from setuptools import Extension, setup

SOURCES = Path("eagle3chat/kernels/src")
# Contraction off: which products are fused is said in the source, so that every variant rounds alike.
COMPILE = [
    "-std=c++17",
    "-O3",
    "-ffp-contract=off",
    "-fvisibility=hidden",
    "-pthread",
    "-Wall",
    "-Wno-maybe-uninitialized",
    "-g0",
]
FLAGS = {"extra_compile_args": COMPILE, "extra_link_args": ["-pthread"]} if sys.platform != "win32" else {}

setup(
    ext_modules=[
        Extension(
            "eagle3chat.kernels._cpu",
            sources=sorted(str(path) for path in SOURCES.glob("*.cpp")),
            depends=sorted(str(path) for path in SOURCES.glob("*.h")),
            language="c++",
            optional=True,
            **FLAGS,
        )
    ]
)
