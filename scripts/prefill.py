"""How fast prompts are read on a CPU, beside the rate of this machine's own matrix product.

    python scripts/prefill.py --lengths 256,1024,4096,7900 --dtypes int4,bfloat16

For each weight type and prompt length, the best of a few prefills of the default pair (or `--model DIR`) from empty
caches: tokens a second, and multiplications and additions a second by count. Counted are the matrix products of the
target's layers and, apart, the scores and sums of its causal attention (for a position, those before it and itself)
and the draft's own pass; norms, rotations, quantisation and the embedding count nothing, and there are no logits. The
last column is the sum over the rate of torch's bfloat16 (for float32: float32) product of 2048 x 2048 matrices,
measured before and after in the same process with the same threads.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from eagle3chat.engine.bundle import Bundle, open_bundle
from eagle3chat.engine.config import DraftConfig, TargetConfig
from eagle3chat.engine.default_pair import default_bundle
from eagle3chat.engine.torch_backend import TorchBackend

SIDE = 2048
PRODUCT_SECONDS = 0.5
FIRST_ID, IDS = 1000, 30000  # prompts are ids from here on: what they say does not matter


@dataclass(frozen=True, slots=True)
class Work:
    """Multiplications and additions of a prompt, in units of 1e9."""

    linears: float
    attention: float
    draft: float

    @property
    def total(self) -> float:
        """Of all three."""
        return self.linears + self.attention + self.draft


def work_of(target: TargetConfig, draft: DraftConfig | None, rows: int) -> Work:
    """What reading `rows` positions takes, of a target whose layers are all alike and dense."""
    return Work(
        linears=2e-9 * rows * target.num_layers * _layer(target, target.hidden_size),
        attention=target.num_layers * _attention(target, rows),
        draft=0.0 if draft is None else 2e-9 * rows * _draft(draft) + draft.num_layers * _attention(draft, rows),
    )


def _layer(sizes: TargetConfig | DraftConfig, width_in: int) -> int:
    """Weights of one layer whose attention reads rows of `width_in`."""
    width, d = sizes.hidden_size, sizes.head_dim
    attention = (sizes.num_heads + 2 * sizes.num_kv_heads) * d * width_in + sizes.num_heads * d * width
    return attention + 3 * width * sizes.intermediate_size


def _draft(draft: DraftConfig) -> int:
    """Weights that a row passes, without the head: a prompt's rows are not proposed from."""
    width = draft.hidden_size
    return draft.tap_width * width + _layer(draft, 2 * width) + (draft.num_layers - 1) * _layer(draft, width)


def _attention(sizes: TargetConfig | DraftConfig, rows: int) -> float:
    """Of one layer: two products with each position seen."""
    return 4e-9 * sizes.num_heads * sizes.head_dim * rows * (rows + 1) / 2


def product_rate(dtype: torch.dtype) -> float:
    """The best rate of torch's product of two square matrices, in 1e9 a second."""
    a, b = (torch.randn(SIDE, SIDE).to(dtype) for _ in range(2))
    best, until = float("inf"), time.perf_counter() + PRODUCT_SECONDS
    while time.perf_counter() < until:
        started = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - started)
    return 2e-9 * SIDE**3 / best


def prefill_seconds(backend: TorchBackend, tokens: list[int], repeats: int) -> float:
    """The best of `repeats` prefills from empty caches."""
    best = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        for _done in backend.prefill(tokens, 0):
            pass
        best = min(best, time.perf_counter() - started)
    return best


def measure(bundle: Bundle, dtype: str, lengths: list[int], threads: int, repeats: int) -> None:
    """Print one weight type's lines."""
    kind = torch.float32 if dtype == "float32" else torch.bfloat16
    before = product_rate(kind)
    backend = TorchBackend(bundle, device="cpu", dtype=dtype, context=max(lengths) + 8, threads=threads)
    lines = []
    for length in lengths:
        tokens = [FIRST_ID + 7919 * i % IDS for i in range(length + 1)]
        work = work_of(bundle.manifest.target, bundle.manifest.draft, length)
        lines.append((length, work, prefill_seconds(backend, tokens, repeats)))
    rate = max(before, product_rate(kind))
    print(f"{dtype}: product of {SIDE} x {SIDE}, {str(kind).removeprefix('torch.')}: {rate:.0f} GFLOPS")
    for length, work, seconds in lines:
        done = work.total / seconds
        parts = f"{work.linears:.1f} + {work.attention:.1f} + {work.draft:.1f} GFLOP"
        print(f"  {length:6} tokens {length / seconds:7.0f} tok/s   {parts}   {done:5.0f} GFLOPS {done / rate:6.2f}")


def main() -> None:
    """Measure what the flags ask for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, help="a bundle directory; default: the built-in pair")
    parser.add_argument("--lengths", default="256,1024,4096,7900")
    parser.add_argument("--dtypes", default="int4,bfloat16")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    bundle = open_bundle(args.model or default_bundle())
    for dtype in args.dtypes.split(","):
        measure(bundle, dtype, [int(length) for length in args.lengths.split(",")], args.threads, args.repeats)


if __name__ == "__main__":
    main()
