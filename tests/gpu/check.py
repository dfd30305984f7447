"""Checks that only a CUDA machine can make: one script, for torch (and triton) alone; a few minutes on a large GPU.

    python tests/gpu/check.py [--device cuda] [--size 8b] [--minutes 7] [--bundle DIR]

    linear     the int4 and int8 products against their twins, all rows and groups
    attention  the attention kernel against its twin: rows, lengths, heads, windows, sinks
    graphs     recorded rounds against plain ones on small pairs in float32: tokens, probabilities, logits, and texts;
               on CUDA also against a CPU
    waits      a recorded round waits for the device once, and for nothing else
    bandwidth  bytes of int4 weights a second at 1, 2, 4 and 8 rows, against a copy on the same device; other tiles
    bundle     tau and tok/s of a bundle of your own, in bfloat16 and int4
    pair       a synthetic pair of a real model's size in int4: tau and tok/s of plain decoding and of chains, in turns;
               with and without graphs; the cost of a verification by rows; peak memory

Prints a table and, last, one line of JSON. A check whose part is missing is skipped, with the reason; the script exits
with 1 when a check fails. With --device cpu and --size tiny the same code runs anywhere, as a test of itself.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import types
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

_HERE = Path(__file__).resolve()
sys.path[:0] = [str(_HERE.parent), str(_HERE.parents[1] / "kernels"), str(_HERE.parents[1] / "engine")]
sys.path[:0] = [str(_HERE.parents[2])]
if find_spec("safetensors") is None:  # no file is read here
    _stub = types.ModuleType("safetensors")
    _stub.SafetensorError, _stub.safe_open = type("SafetensorError", (Exception,), {}), None
    sys.modules["safetensors"] = _stub

import torch
from exact import graphs, waits
from measures import bandwidth, bundle, pair
from synthetic import SIZES


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a check found."""

    name: str
    status: str  # "passed", "failed", "measured", "skipped"
    why: str  # of a failure or of skipping
    figures: tuple[tuple[str, float | str], ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Check:
    """`run` gives its complaint (empty: none) and its figures; `needs` says why it cannot run (empty: it can)."""

    name: str
    needs: str
    run: Callable[[], tuple[str, dict[str, float | str]]]
    measures: bool = False


def kernel(script: str) -> tuple[str, dict[str, float | str]]:
    """All cases of a kernel on the device."""
    import triton_attention_cases
    import triton_cases

    failed = {"linear": triton_cases, "attention": triton_attention_cases}[script].failures("cuda")
    return (f"{failed} cases differ from the twin" if failed else ""), {"failed cases": failed}


def checks(device: str, size: str, directory: str) -> tuple[Check, ...]:
    """All of them, in order."""
    no_kernel = "needs CUDA" if device == "cpu" else "" if find_spec("triton") else "needs triton"
    return (
        Check("linear", no_kernel, partial(kernel, "linear")),
        Check("attention", no_kernel, partial(kernel, "attention")),
        Check("graphs", "", partial(graphs, device)),
        Check("waits", "", partial(waits, device)),
        Check("bandwidth", no_kernel, bandwidth, measures=True),
        Check("bundle", "" if directory else "needs --bundle", partial(bundle, directory, device), measures=True),
        Check("pair", no_kernel if size != "tiny" else "", partial(pair, device, SIZES[size]), measures=True),
    )


def judged(check: Check, late: bool) -> Outcome:
    """Run a check. What it raises is a failure: the others go on."""
    if check.needs or late:
        return Outcome(check.name, "skipped", check.needs or "no time is left", (), 0.0)
    started = time.perf_counter()
    try:
        why, figures = check.run()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this check's failure
        why, figures = f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}", {}
    status = "failed" if why else "measured" if check.measures else "passed"
    return Outcome(check.name, status, why, tuple(figures.items()), time.perf_counter() - started)


def shown(outcome: Outcome) -> list[str]:
    """Its lines of the table."""
    lines = [f"{outcome.name:<10} {outcome.status:<9} {outcome.seconds:6.1f} s  {outcome.why}".rstrip()]
    for name, value in outcome.figures:
        lines.append(f"{'':<10}   {name:<44} {value if isinstance(value, str) else f'{value:,.4g}'}")
    return lines


def main(arguments: list[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--size", default="8b", choices=tuple(SIZES))
    parser.add_argument("--minutes", type=float, default=7.0, help="no check starts after this")
    parser.add_argument("--bundle", default="", metavar="DIR", help="measured as well; needs the package's libraries")
    wanted = parser.parse_args(arguments)
    if wanted.device == "cuda" and not torch.cuda.is_available():
        print("There is no CUDA device here; --device cpu --size tiny tries the script itself.")
        return 2
    name = torch.cuda.get_device_name() if wanted.device == "cuda" else "cpu"
    print(f"device     {name}, torch {torch.__version__}", flush=True)
    started, outcomes = time.perf_counter(), []
    for check in checks(wanted.device, wanted.size, wanted.bundle):
        late = time.perf_counter() - started > wanted.minutes * 60.0
        outcomes.append(judged(check, late))
        print("\n".join(shown(outcomes[-1])), flush=True)
    failed = any(outcome.status == "failed" for outcome in outcomes)
    found = [asdict(outcome) | {"figures": dict(outcome.figures)} for outcome in outcomes]
    print(json.dumps({"device": name, "torch": torch.__version__, "failed": failed, "checks": found}))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
