"""The kernels on AArch64, emulated: every variant against plain code, and which one a CPU gets."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
OPTIONS = ["-std=c++17", "-O1", "-ffp-contract=off", "-pthread", "-static"]
WARNINGS = ["-Wall", "-Werror", "-Wno-maybe-uninitialized"]
HERE = Path(__file__).parent
SOURCES = sorted((HERE.parents[1] / "eagle3chat/kernels/src").glob("*.cpp"))

pytestmark = pytest.mark.skipif(
    not (shutil.which(COMPILER) and shutil.which(EMULATOR)),
    reason=f"needs {COMPILER} and {EMULATOR} (Debian: g++-aarch64-linux-gnu, qemu-user)",
)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """variants.cpp with the kernels, for AArch64."""
    made = tmp_path_factory.mktemp("arm") / "variants"
    subprocess.run(
        [COMPILER, *OPTIONS, *WARNINGS, *map(str, SOURCES), str(HERE / "variants.cpp"), "-o", str(made)], check=True
    )
    return made


def emulated(program: Path, cpu: str, *arguments: str) -> list[str]:
    """The lines that it prints on such a CPU."""
    command = [EMULATOR, "-cpu", cpu, str(program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_every_variant_agrees_with_plain_code(program: Path) -> None:
    assert emulated(program, "cortex-a76") == ["neon", "portable: 0 wrong", "neon: 0 wrong"]


def test_a_cpu_without_the_dot_product_gets_the_portable_variant(program: Path) -> None:
    assert emulated(program, "cortex-a53", "best") == ["portable"]
