"""Races of the thread pool with workers kept within their parts: nothing waits for them, nothing is done twice."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

COMPILER = next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
OPTIONS = ["-std=c++17", "-O1", "-pthread", "-Wall", "-Werror"]
HERE = Path(__file__).parent
POOL = HERE.parents[1] / "eagle3chat/kernels/src/pool.cpp"

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")


def compiled(made: Path, *options: str) -> bool:
    """Whether pool_cases.cpp could be built with these options too."""
    command = [str(COMPILER), *OPTIONS, *options, str(HERE / "pool_cases.cpp"), str(POOL), "-o", str(made)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_a_late_part_is_neither_waited_for_nor_kept_twice(tmp_path: Path) -> None:
    """Under the thread sanitiser where the compiler has one. Meant to hang when a late part is waited for."""
    made = tmp_path / "cases"
    assert compiled(made, "-fsanitize=thread") or compiled(made)
    done = subprocess.run([str(made)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
