"""Recorded rounds against plain ones on small pairs in float32. On a CPU a stand-in records (captures.py)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from captures import Again, Strict
from synthetic import SIZES, Size, open_synthetic

from eagle3chat.engine import torch_cache
from eagle3chat.engine.backend import Verdict
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.speculate import agreed
from eagle3chat.engine.torch_backend import TorchBackend
from eagle3chat.engine.torch_graphs import Graphs
from eagle3chat.engine.torch_span import Place

SAMPLINGS = (Sampling(), Sampling(temperature=0.8, seed=7), Sampling(temperature=1.1, top_k=50, top_p=0.9, seed=3))
PROMPT = [5, 77, 130, 9, 250, 31, 8, 200, 66, 12, 19]
CHAINS = (3, 1, 0, 6, 2, 0, 0, 5, 4, 6, 3, 0, 1, 2, 6, 4)
SLACK = 24  # rows of a sliding buffer beyond its window
NEAR = 1e-3  # of probabilities: the attention kernel sums in another order
READS = ("tolist", "item", "__bool__", "__int__", "__float__", "__index__", "numpy", "cpu", "nonzero")


def opened(size: Size, device: str, recorded: bool) -> TorchBackend:
    """A pair in float32, whose windows move often; what is not recorded is plain on any device."""
    with patch.object(torch_cache, "SLACK", SLACK):
        if recorded:
            return open_synthetic(size, device, "float32", capture=Again() if device == "cpu" else None)
        backend = open_synthetic(size, device, "float32")
    backend._graphs, backend._rounds = Graphs(None, "compared with"), None
    return backend


def prefilled(backend: TorchBackend) -> None:
    for _ in backend.prefill(PROMPT, 0):
        pass


def play(backend: TorchBackend, chain: int, sampling: Sampling) -> tuple[Verdict, int]:
    """A round; how many tokens it emitted."""
    verdict = backend.verify(backend.draft(chain, sampling), sampling)
    accepted = agreed(verdict)
    backend.commit(accepted, verdict.chosen[accepted])
    return verdict, accepted + 1


def difference(got: Verdict, wanted: Verdict) -> float:
    """Of probabilities; infinite when the tokens differ."""
    if (got.drafted, got.chosen) != (wanted.drafted, wanted.chosen):
        return float("inf")
    pairs = zip(
        got.draft_p + got.target_p + got.chosen_p, wanted.draft_p + wanted.target_p + wanted.chosen_p, strict=True
    )
    return max(abs(a - b) for a, b in pairs)


@torch.inference_mode()
def logits_apart(size: Size, device: str) -> float:
    """The largest difference of a recorded pass's logits from a plain one's, by their spread."""
    plain, recorded = opened(size, device, False), opened(size, device, True)
    ids = torch.tensor([9, 33, 71, 250], device=device)
    found = []
    for backend in (plain, recorded):
        prefilled(backend)
        found.append(plain._target.logits(plain._target(ids)[0]))
        if backend is recorded:
            cache, rounds = recorded._target.cache, recorded._rounds
            cache.prepare(4)
            start = torch.tensor([cache.rows], device=device)
            places = [
                Place(start, torch.tensor([part.first], device=device), rounds._bound(part, 4), rounds.fused)
                for part in cache.parts
            ]
            found[1] = recorded._target.logits(recorded._target.at(ids, places)[0])
    return ((found[0] - found[1]).abs().max() / found[0].std()).item()


def graphs(device: str) -> tuple[str, dict[str, float | str]]:
    """Every kind of round, chains that change, two pairs, three samplings."""
    apart, rounds, accepted, drafted, logits = 0.0, 0, 0, 0, 0.0
    for name in ("tiny", "windowed"):
        logits = max(logits, logits_apart(SIZES[name], device))
        for sampling in SAMPLINGS:
            devices = [(device, False), (device, True), *([("cpu", False)] if device != "cpu" else [])]
            backends = [opened(SIZES[name], place, recorded) for place, recorded in devices]
            for backend in backends:
                prefilled(backend)
            if backends[1].graphs:
                return f"rounds are not recorded: {backends[1].graphs}", {}
            for chain in CHAINS * (1 if device == "cpu" else 3):
                played = [play(backend, chain, sampling) for backend in backends]
                if not backends[1]._rounds.live:
                    return f"a round was not recorded: {backends[1].graphs or 'it was left to the plain path'}", {}
                apart = max(apart, *(difference(verdict, played[0][0]) for verdict, _ in played[1:]))
                rounds, accepted, drafted = rounds + 1, accepted + played[0][1] - 1, drafted + chain
                if apart > NEAR:
                    where = f"round {rounds}, {name}, temperature {sampling.temperature}, chain {chain}"
                    return f"recorded and plain rounds differ by {apart:.1e} in {where}", {}
            for backend in backends:
                backend.close()
    figures = {"rounds": rounds, "drafted": drafted, "accepted": accepted, "probabilities apart": apart}
    if not 0 < accepted < drafted:
        return "the pairs accept all or nothing, so nothing was shown", figures
    figures["logits apart, by their spread"] = logits
    return ("recorded logits differ" if logits > NEAR else ""), figures


@contextmanager
def counted_reads() -> Iterator[list[str]]:
    """Names of the methods by which the host reads a tensor, as they are called."""
    reads: list[str] = []
    with patch.multiple(torch.Tensor, **{name: _counting(name, reads) for name in READS}):
        yield reads


def _counting(name: str, reads: list[str]) -> object:
    original = getattr(torch.Tensor, name)

    def counted(self: torch.Tensor, *args: object, **options: object) -> object:
        reads.append(name)
        return original(self, *args, **options)

    return counted


def waits(device: str) -> tuple[str, dict[str, float | str]]:
    """One read a round; on CUDA no operation that waits by itself, as torch's debug mode knows them."""
    backend = open_synthetic(SIZES["tiny"], device, "float32", capture=Strict() if device == "cpu" else None)
    prefilled(backend)
    for chain in (3, 0, 6):
        play(backend, chain, SAMPLINGS[1])
    if device == "cuda":
        torch.cuda.set_sync_debug_mode("error")  # what raises is this check's failure
    try:
        with counted_reads() as reads:
            rounds = 0
            for chain in (3, 0, 6, 3, 3):
                play(backend, chain, SAMPLINGS[1])
                rounds += 1
    finally:
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("default")
    figures = {"rounds": rounds, "reads": len(reads)}
    return ("" if reads == ["tolist"] * rounds else f"reads were {', '.join(reads)}"), figures
