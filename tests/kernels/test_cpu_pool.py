"""The kernels' library: threads, variants, the switch."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest
import torch

from eagle3chat.kernels import cpu
from eagle3chat.kernels.cpu_linear import CpuLinear

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


@needed
def test_calls_from_many_threads_and_a_changing_number_of_workers() -> None:
    """Meant to hang or differ when parts are lost, run twice, or run with another call's arguments."""
    linear, x = _linear(), torch.ones(4, 576, dtype=torch.bfloat16)
    expected = linear(x)
    wrong: list[int] = []

    def call(count: int) -> None:
        wrong.extend(i for i in range(count) if not torch.equal(linear(x), expected))

    with cpu.forced(cpu.Variant.PORTABLE, threads=4):  # slow enough for calls to meet
        callers = [threading.Thread(target=call, args=(20,)) for _ in range(3)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    for threads in (1, 3, 2, 5, 2):
        with cpu.forced(cpu.variants()[-1], threads=threads):
            call(200)
            time.sleep(0.002)  # past the workers' patience: they sleep and are woken
            call(20)
    assert not wrong


@needed
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_can_call() -> None:
    program = (
        "import os, torch\n"
        "from test_cpu_pool import _linear\n"
        "from eagle3chat.kernels import cpu\n"
        "cpu.set_threads(2)\n"
        "linear, x = _linear(), torch.ones(4, 576, dtype=torch.bfloat16)\n"
        "y = linear(x)\n"
        "child = os.fork()\n"
        "if child == 0: os._exit(0 if torch.equal(linear(x), y) and cpu.describe().endswith(' 1 threads') else 1)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    here = os.path.dirname(__file__)
    done = subprocess.run([sys.executable, "-c", program], cwd=here, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "0", done.stderr


def _linear() -> CpuLinear:
    """Large enough to be shared by two threads."""
    codes = torch.arange(960 * 576, dtype=torch.int64).remainder(16).to(torch.uint8).view(960, 576)
    scales = torch.linspace(0.5, 1.5, 960 * 18).view(960, 18)
    return CpuLinear(codes, scales, -7.5 * scales, group=32, bits=4)
