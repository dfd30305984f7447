"""The kernels' library: threads, variants, the switch."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from eagle3chat.kernels import cpu

needed = pytest.mark.skipif(cpu.library() is None, reason="the kernels are not built here")


@needed
def test_best_variant_is_used_and_another_can_be_forced() -> None:
    usual = cpu.variant()
    assert cpu.Variant.PORTABLE in cpu.variants()
    with cpu.forced(cpu.Variant.PORTABLE, threads=3):
        assert cpu.variant() is cpu.Variant.PORTABLE
        assert cpu.describe() == "portable, 3 threads"
    assert cpu.variant() is usual


@needed
def test_a_variant_of_another_machine_is_refused() -> None:
    missing = next(variant for variant in cpu.Variant if variant not in cpu.variants())
    with pytest.raises(ValueError, match="not available here"), cpu.forced(missing):
        pass


@pytest.mark.parametrize(
    ("value", "expected"),
    [("off", "off"), ("portable", "portable, 1 threads"), ("nonsense", "EAGLE3CHAT_KERNELS=nonsense: this CPU has")],
)
@needed
def test_the_environment_variable_chooses(value: str, expected: str) -> None:
    command = [sys.executable, "-c", "from eagle3chat.kernels import cpu; print(cpu.describe())"]
    done = subprocess.run(command, env={**os.environ, "EAGLE3CHAT_KERNELS": value}, capture_output=True, text=True)
    assert expected in done.stdout + done.stderr
