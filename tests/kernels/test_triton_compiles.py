"""The GPU's kernels become machine code for real devices, in bfloat16: triton compiles without a device.

The interpreter, which runs them elsewhere in the tests, knows neither bfloat16 products nor what a compiler refuses.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
ROUND = ("q", "keys", "values", "q_row", "q_head", "key_head", "x", "words", "outputs", "columns", "words_in_row")
"""Arguments that triton finds to be multiples of 16 in models of any size."""
SHARED = 101_376  # bytes that a program may use on a small device; a large one has more than twice that
HEAD = {"WINDOW": 1024, "GROUP": 2, "WIDTH": 256, "BLOCK_R": 16, "BLOCK_N": 32, "BLOCK_D": 256, "SPLITS": 32}
ATTENTION = {name: "*bf16" for name in ("q", "keys", "values")} | {"place": "*i64"}
ATTENTION |= {name: "*fp32" for name in ("sums", "tops", "totals")} | {"scale": "fp32"}
PRODUCT = {"x": "*bf16", "words": "*i32", "scales": "*bf16", "biases": "*bf16", "y": "*fp32", "added": "*fp32"}
FORM = {"BITS": 4, "GROUP": 32, "HAS_ADDED": True, "ROWS": 16, "BLOCK_N": 32, "BLOCK_K": 128, "SPLITS": 4}
KERNELS = {
    "attention": ("triton_attention", "_partial", ATTENTION, HEAD, 2),
    "join": (
        "triton_attention",
        "_join",
        {name: "*fp32" for name in ("sums", "tops", "totals", "sinks")} | {"y": "*bf16"},
        {"HAS_SINKS": True, "WIDTH": 256, "BLOCK_D": 256, "SPLITS": 32},
        3,
    ),
    "product": ("triton_linear", "_product", PRODUCT, FORM, 3),
    "add": (
        "triton_linear",
        "_add",
        {"sums": "*fp32", "y": "*bf16", "added": "*fp32"},
        {"HAS_ADDED": True, "SPLITS": 4, "ADDED": 1024},
        3,
    ),
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # triton warns where it is not said


def compiled(name: str, capability: int) -> Any:
    """A kernel's machine code; arguments that have no type here are int32."""
    from importlib import import_module

    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    module, function, types, constants, stages = KERNELS[name]
    kernel = getattr(import_module(f"eagle3chat.kernels.{module}"), function)
    signature = {argument: types.get(argument, "i32") for argument in kernel.arg_names}
    signature |= dict.fromkeys(constants, "constexpr")
    round16 = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in ROUND if name in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=round16)
    return compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4, "num_stages": stages})


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_compiles(name: str) -> None:
    made = compiled(name, 90)
    assert len(made.asm["cubin"]) > 1000 and ".target sm_90" in made.asm["ptx"]
    assert made.metadata.shared <= SHARED
    if name in ("attention", "product"):
        assert "bf16" in made.asm["ptx"] and "mma" in made.asm["ptx"]  # on the tensor cores
        copies = re.findall(r"cp\.async\.c[ag]\.shared\.global [^;]*\], (0x\w+)", made.asm["ptx"])
        assert copies and set(copies) == {"0x10"}  # memory is read 16 bytes at a time
