"""What is measured and not judged: bandwidth of the int4 product, and a synthetic pair's speed.

Times are the device's where there is one. Nothing here fails but by an error: what is fast enough is for the reader.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from exact import prefilled
from synthetic import Size, disturb, open_synthetic

from eagle3chat.engine.requests import Controls
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.speculate import Step, speculate
from eagle3chat.engine.torch_backend import TorchBackend
from eagle3chat.engine.torch_graphs import Graphs

if TYPE_CHECKING:
    from eagle3chat.kernels.triton_linear import Tile, TritonLinear

Figures = dict[str, float | str]
GREEDY = Sampling()
SHAPES = ((6144, 4096), (4096, 14336), (28672, 4096), (128256, 4096))
TRIED = (4096, 28672)  # outputs of the shapes that other tiles are tried on: a tile takes seconds to compile
CHAINS = (1, 2, 3, 4, 6)
QUESTION = "Explain in a few sentences how a bicycle stays upright."
AIM = (0.45, 0.75)  # share of first proposals that are right


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


def bandwidth() -> tuple[str, Figures]:
    """GB/s of weights read, of the shapes of an 8B model; the copy counts what it reads and what it writes."""
    from eagle3chat.kernels.triton_linear import Tile

    block = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    other = torch.empty_like(block)
    copied = 2 * block.nbytes / seconds(lambda: other.copy_(block), 20) / 1e9
    figures: Figures = {"copy GB/s": copied}
    for rows, columns in SHAPES:
        made = [_weight(rows, columns) for _ in range(1 if rows > 2**16 else 6)]  # more than the cache holds
        times = {}
        for m in (1, 2, 4, 8):
            x = torch.randn(m, columns, device="cuda", dtype=torch.bfloat16)
            times[m] = seconds(lambda x=x, made=made: [linear(x) for linear in made]) / len(made)
            speed = made[0].nbytes / times[m] / 1e9
            figures[f"{rows}x{columns} M={m}"] = f"{times[m] * 1e6:.1f} us, {speed:.0f} GB/s, {speed / copied:.2f}"
        figures[f"{rows}x{columns} M=8 / M=1"] = times[8] / times[1]
        if rows not in TRIED:
            continue
        tiles = itertools.product((16, 32, 64), (128,), (4, 8), (3, 5))
        best = min(_tiled(made, Tile(*tile), columns) for tile in tiles)
        figures[f"{rows}x{columns} best tile at M=4"] = f"{best[1]}: {made[0].nbytes / best[0] / 1e9:.0f} GB/s"
    return "", figures


def _weight(rows: int, columns: int) -> TritonLinear:
    from eagle3chat.kernels.triton_linear import TritonLinear

    words = torch.randint(-(2**31), 2**31, (rows, columns // 8), device="cuda", dtype=torch.int32)
    scales = torch.full((rows, columns // 64), 0.01, device="cuda", dtype=torch.bfloat16)
    return TritonLinear(words, scales, scales * -7.5, bits=4, group=64)


def _tiled(made: list[TritonLinear], tile: Tile, columns: int) -> tuple[float, str]:
    """Seconds of a call with another tile, and the tile; what does not fit the device takes for ever."""
    from triton.errors import TritonError

    x = torch.randn(4, columns, device="cuda", dtype=torch.bfloat16)
    before = made[0].tile
    for linear in made:
        linear.tile = tile
    try:
        return seconds(lambda: [linear(x) for linear in made], 10) / len(made), str(tile)
    except TritonError:
        return float("inf"), str(tile)
    finally:
        for linear in made:
            linear.tile = before


@dataclass(frozen=True, slots=True)
class Run:
    """A reply: tokens a second and tau, and medians of the device's times."""

    speed: float
    tau: float
    first_right: float  # share of rounds whose first proposal was right; 0: nothing was drafted
    draft: float  # seconds
    verify: float


def reply(backend: TorchBackend, chain: int, tokens: int) -> Run:
    """Of so many tokens after the same prompt."""
    prefilled(backend)
    started = time.perf_counter()
    steps: list[Step] = list(
        speculate(backend, 11, lambda: Controls(chain, GREEDY), lambda ids: (len(ids), False), tokens)
    )
    passed = time.perf_counter() - started
    drafted = [step for step in steps if step.verdict.drafted]
    right = sum(step.accepted > 0 for step in drafted) / max(1, len(drafted))
    verdicts = [step.verdict for step in steps[len(steps) // 4 :]]  # recordings are made at first
    times = [
        statistics.median(v.draft_seconds for v in verdicts),
        statistics.median(v.verify_seconds for v in verdicts),
    ]
    return Run(tokens / passed, tokens / len(steps), right, *times)


def calibrated(backend: TorchBackend, tokens: int) -> float:
    """Change the disturbance until the draft is right some of the time; gives how often its first proposal is."""
    found = reply(backend, 1, tokens).first_right
    for _ in range(8):
        if AIM[0] <= found <= AIM[1]:
            break
        disturb(backend, 0.75 if found < AIM[0] else 1.25)
        found = reply(backend, 1, tokens).first_right
    return found


def pair(device: str, size: Size) -> tuple[str, Figures]:
    """Plain and speculative decoding in turns, medians of three; then without graphs."""
    tokens, times, dtype = (256, 3, "int4") if device == "cuda" else (24, 1, "float32")
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    backend = open_synthetic(size, device, dtype)
    figures: Figures = {"weights and caches GB": backend.memory_bytes / 1e9}
    figures["first proposal right"] = calibrated(backend, tokens // 4)
    figures["graphs"] = backend.graphs or "on"
    runs: dict[int, list[Run]] = {chain: [] for chain in (0, *CHAINS)}
    for chain in runs:
        reply(backend, chain, 16)  # recordings
    for _ in range(times):
        for chain, found in runs.items():
            found.append(reply(backend, chain, tokens))
    plain = statistics.median(run.speed for run in runs[0])
    verify = statistics.median(run.verify for run in runs[0])
    figures["plain tok/s"], figures["verify(1) ms"] = plain, verify * 1e3
    for chain in CHAINS:
        speed, tau, cost, draft = (
            statistics.median(getattr(run, name) for run in runs[chain]) for name in ("speed", "tau", "verify", "draft")
        )
        figures[f"chain {chain}"] = (
            f"{speed:.1f} tok/s, {speed / plain:.2f} of plain, tau {tau:.2f}, "
            f"verify({chain + 1})/verify(1) {cost / verify:.2f}, draft {draft / verify:.2f} of verify(1)"
        )
    if device == "cuda":
        figures["peak memory GB"] = torch.cuda.max_memory_allocated() / 1e9
        figures |= _without_graphs(backend, tokens)
    complaint = "" if 0.0 < float(figures["first proposal right"]) < 1.0 else "the draft is always right or never"
    backend.close()
    return complaint, figures


def bundle(directory: str, device: str) -> tuple[str, Figures]:
    """Tau and tok/s of a bundle, each chain's second reply."""
    from eagle3chat.engine.pair import open_pair
    from eagle3chat.engine.requests import Message, PairOptions, Say
    from eagle3chat.engine.session import Session

    figures: Figures = {}
    for dtype in ("bfloat16", "int4"):
        opened = open_pair(PairOptions(bundle=directory, backend="torch", device=device, dtype=dtype))
        for chain in (0, *CHAINS):
            say = Say((Message("user", QUESTION),), Controls(chain, GREEDY), 128)
            for _ in range(2):
                usage = list(Session(opened).reply(say))[-1].usage
            figures[f"{dtype} chain {chain}"] = f"{usage.tokens_per_second:.1f} tok/s, tau {usage.tau:.3f}"
        opened.close()
    return "", figures


def _without_graphs(backend: TorchBackend, tokens: int) -> Figures:
    graphs, rounds = backend._graphs, backend._rounds
    backend._settle()
    backend._graphs, backend._rounds = Graphs(None, "compared with"), None
    found: Figures = {f"chain {chain} without graphs tok/s": reply(backend, chain, tokens).speed for chain in (0, 3)}
    backend._graphs, backend._rounds = graphs, rounds
    return found
