"""Cases of the GPU's attention kernel against its twin: prints each, and exits with 1 on a failure.

Run by test_triton_attention.py on a CPU, with TRITON_INTERPRET=1, and by tests/gpu/check.py on a device.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3chat.kernels.triton_attention import SPLITS, attend, twin


@dataclass(frozen=True, slots=True)
class Case:
    """Sizes of one call: heads, key-value heads, width of a head, slots of the cache."""

    heads: int
    kv: int
    width: int
    slots: int
    window: int = 0
    sinks: bool = False

    def __str__(self) -> str:
        more = (f" window {self.window}" if self.window else "") + (" sinks" if self.sinks else "")
        return f"{self.heads}/{self.kv} heads of {self.width}{more}"


ROWS = (1, 2, 3, 4, 7, 8)
CASES = (
    Case(4, 2, 16, 200),
    Case(6, 1, 32, 96),
    Case(3, 3, 80, 150),  # a width between powers of two
    Case(4, 2, 16, 90, window=8),
    Case(4, 1, 32, 400, window=100, sinks=True),
    Case(4, 2, 16, 700),  # more keys than a block for each split
    Case(2, 1, 256, 70),
)
ON_DEVICE = (
    Case(32, 8, 128, 20000),
    Case(32, 16, 256, 5000, window=1024),
    Case(32, 4, 512, 20000),
    Case(64, 8, 64, 9000, window=128, sinks=True),
)


def places(case: Case, rows: int) -> list[int]:
    """Slots to start at: the front, around the window, around a block, the end."""
    found = {0, case.window, 63, case.slots - rows}
    return sorted(place for place in found if 0 <= place <= case.slots - rows)


def made(case: Case, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, Tensor | None]:
    """Queries of 16 rows among other heads, a cache, sinks. What no row sees stays NaN until it is asked for."""
    generator = torch.Generator().manual_seed(case.heads * 1000 + case.width + case.window)
    q = torch.randn(16, case.heads + 2 * case.kv, case.width, generator=generator).to(device, dtype)
    cache = torch.randn(2 * case.kv, case.slots, case.width, generator=generator).to(device, dtype)
    sinks = torch.randn(case.heads, generator=generator).to(device) if case.sinks else None
    return q[:, : case.heads], cache, sinks


def error_of(case: Case, dtype: torch.dtype, device: str, rows: int, place: int) -> tuple[float, bool]:
    """The largest difference from the twin, by the twin's largest; whether the last row alone is the same, up
    to the rounding of sums in another order (where the context passes a power of two between the two)."""
    q, cache, sinks = made(case, dtype, device)
    scale = case.width**-0.5
    wanted = twin(q[:rows], cache, place, scale=scale, window=case.window, sinks=sinks)
    cache[:, place + rows :] = torch.nan  # nothing beyond the last row may be read
    if case.window:
        cache[:, : max(0, place - case.window + 1)] = torch.nan
    at = torch.tensor([place], device=device)
    options = {"scale": scale, "window": case.window, "sinks": sinks, "splits": 4 if device == "cpu" else SPLITS}
    got = attend(q[:rows], cache, at, **options)
    alone = attend(q[rows - 1 : rows], cache, at + rows - 1, **options) if rows > 1 else got
    error = ((got.double() - wanted).abs().max() / wanted.abs().max()).item()
    return error, torch.allclose(alone.double(), got[-1:].double(), rtol=0, atol=1e-6)


def failures(device: str) -> int:
    """By interpretation a call takes tens of milliseconds: fewer splits, and each case has some of the rows."""
    count = 0
    short = torch.float16 if device == "cpu" else torch.bfloat16  # the interpreter has no bfloat16 products
    for index, case in enumerate(CASES + (ON_DEVICE if device != "cpu" else ())):
        for dtype in (short,) if case in ON_DEVICE else (torch.float32, short):
            loose = 2e-5 if dtype == torch.float32 else 3e-3 if dtype == torch.float16 else 2e-2
            some = (
                ROWS
                if device != "cpu"
                else ROWS[index % 2 :: 2]
                if dtype == torch.float32
                else ROWS[2 * index + 1 : 2 * index + 2]
            )
            for rows in some:
                found = places(case, rows)
                for place in found if device != "cpu" else found[rows % 2 :: 2]:
                    error, alone = error_of(case, dtype, device, rows, place)
                    good = error < loose and (alone or dtype != torch.float32)
                    print(f"{case} {dtype} M={rows} at {place}: {error:.1e}{'' if good else ' FAILED'}", flush=True)
                    count += not good
    return count


if __name__ == "__main__":
    sys.exit(min(1, failures(sys.argv[1] if len(sys.argv) > 1 else "cpu")))
