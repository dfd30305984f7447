"""Checks that only a CUDA machine can make: one script, torch and triton only, about a minute.

    python tests/gpu/check.py [--bundle DIR]

    kernel     the int4 and int8 products against their twins, all rows and groups
    bandwidth  bytes of weights a second at 1, 2, 4 and 8 rows, against a plain copy on the same device
    exact      a small random pair in float32: the same text with and without drafting, on the device and on the CPU
    pair       with --bundle: tau and tok/s of plain decoding and of chains 1 to 4, in bfloat16 and int4

Prints what it measured; exits with 1 when a check failed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path[:0] = [
    str(Path(__file__).parents[1]),
    str(Path(__file__).parents[1] / "kernels"),
    str(Path(__file__).parents[2]),
]

import torch
import triton_cases
from tiny import tiny_bundle

from eagle3chat.engine.bundle import open_bundle
from eagle3chat.engine.pair import open_pair
from eagle3chat.engine.requests import Controls, Message, PairOptions, Say
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.session import Session
from eagle3chat.engine.speculate import speculate
from eagle3chat.engine.torch_backend import TorchBackend

PROMPT = [5, 77, 130, 9, 250, 31, 8]
QUESTION = "Explain in a few sentences how a bicycle stays upright."


def seconds(work: Callable[[], object], count: int = 50) -> float:
    """Of one call, on the device's clock."""
    for _ in range(5):
        work()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(count):
        work()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1000.0 / count


def bandwidth() -> None:
    block = torch.empty(2**28, dtype=torch.uint8, device="cuda")
    other = torch.empty_like(block)
    copied = 2 * block.nbytes / seconds(lambda: other.copy_(block)) / 1e9
    print(f"copy       {copied:.0f} GB/s read and written")
    for rows, columns in ((4096, 4096), (14336, 4096), (21504, 5376)):
        linear = triton_cases.weight(rows, columns, 4, 32, "cuda", bias=False)
        dense = linear.dense().bfloat16()
        for m in (1, 2, 4, 8):
            x = torch.randn(m, columns, device="cuda", dtype=torch.bfloat16)
            mine, plain = seconds(partial(linear, x)), seconds(partial(torch.nn.functional.linear, x, dense))
            speed = linear.nbytes / mine / 1e9
            times = f"{mine * 1e6:.1f} us, {speed:.0f} GB/s; dense {plain * 1e6:.1f} us"
            print(f"bandwidth  {rows}x{columns} M={m}: {times}")


def decode(backend: TorchBackend, chain: int, sampling: Sampling, count: int = 60) -> list[int]:
    for _ in backend.prefill(PROMPT, 0):
        pass
    steps = speculate(backend, len(PROMPT), lambda: Controls(chain, sampling), lambda ids: (len(ids), False), count)
    return [token for step in steps for token in step.tokens]


def exact() -> bool:
    good = True
    with tempfile.TemporaryDirectory() as directory:
        bundle = open_bundle(tiny_bundle(Path(directory)))
        for sampling in (Sampling(), Sampling(temperature=0.9, seed=3, top_p=0.95)):
            texts = []
            for device in ("cpu", "cuda"):
                backend = TorchBackend(bundle, device=device, dtype="float32")
                texts += [decode(backend, chain, sampling) for chain in (0, 1, 3, 6)]
                backend.close()
            same = all(text == texts[0] for text in texts)
            print(f"exact      float32, temperature {sampling.temperature}: {'same text' if same else 'FAILED'}")
            good &= same
    return good


def pair(directory: str) -> None:
    for dtype in ("bfloat16", "int4"):
        opened = open_pair(PairOptions(bundle=directory, backend="torch", device="cuda", dtype=dtype))
        for chain in range(5):
            session = Session(opened)
            say = Say((Message("user", QUESTION),), Controls(chain, Sampling()), 128)
            list(session.reply(say))
            started = time.perf_counter()
            usage = list(Session(opened).reply(say))[-1].usage
            figures = f"{usage.tokens_per_second:.1f} tok/s, tau {usage.tau:.3f}"
            print(f"pair       {dtype} chain {chain}: {figures}, {time.perf_counter() - started:.2f} s")
        opened.close()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bundle")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("There is no CUDA device here.")
        return 2
    print(f"device     {torch.cuda.get_device_name()}, torch {torch.__version__}")
    failed = triton_cases.failures("cuda")
    print(f"kernel     {'all cases equal the twin' if not failed else f'{failed} cases FAILED'}")
    bandwidth()
    good = exact()
    if arguments.bundle:
        pair(arguments.bundle)
    return 0 if good and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
