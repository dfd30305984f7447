"""The GPU's attention kernel by interpretation on the CPU, in a process of its own; see triton_attention_cases.py."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_the_kernel_equals_its_twin() -> None:
    script = Path(__file__).with_name("triton_attention_cases.py")
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert done.stdout.count("M=") == 39
