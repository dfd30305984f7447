"""The bound chain against the plain one: the same proposals, probabilities and cache rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tiny import tiny_bundle

from eagle3chat.engine.backend import Fate
from eagle3chat.engine.bundle import open_bundle
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.torch_backend import TorchBackend
from eagle3chat.engine.torch_draft_program import DraftProgram
from eagle3chat.engine.torch_proposal import propose
from eagle3chat.kernels import cpu_linear

pytestmark = pytest.mark.skipif(not cpu_linear.usable(), reason="the kernels do not serve here")
PROMPT = [5, 77, 130, 9, 250, 31, 8]
FLAGS = [{}, {"norm_before_residual": True}, {"norm_output": True}, {"draft_head_dim": 32}]


@pytest.fixture(params=FLAGS, ids=lambda flags: next(iter(flags), "plain"))
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TorchBackend]:
    bundle = open_bundle(tiny_bundle(tmp_path, quantized=True, **request.param))
    opened = TorchBackend(bundle, dtype="int4")
    assert opened._program is not None
    yield opened
    opened.close()


def rows_of(backend: TorchBackend, rows: int) -> tuple[torch.Tensor, list[int]]:
    """Confirmed rows that wait, as many as asked."""
    for _ in backend.prefill(PROMPT, 0):
        pass
    taps, _ = backend._pending.take()
    torch.manual_seed(rows)
    return taps + torch.randn(rows, taps.shape[1]).to(taps), [(11 * i + 3) % 300 for i in range(rows)]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.9, seed=4)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("rows", [1, 2, 5, 16, 17, 40])
@torch.inference_mode()
def test_chains(rows: int, sampling: Sampling, backend: TorchBackend) -> None:
    head, program = backend._head, backend._program
    for chain in (1, 2, 6):
        taps, tokens = rows_of(backend, rows)
        start = head.cache.rows
        noise = backend._noise_of(len(PROMPT) + rows, chain + 1, sampling)
        got, got_p = program(taps, tokens, chain, sampling, noise)
        assert head.cache.rows == start + rows
        cached = head.cache.data[:, :, : start + rows + chain - 1].clone()
        head.cache.keep(start)
        ids = torch.tensor(tokens)
        out = head(ids, head.fuse(taps), start)
        head.cache.advance(rows)
        wanted, wanted_p = propose(head, ids, out, chain, sampling, noise, None)
        assert got.tolist() == wanted.tolist()
        torch.testing.assert_close(got_p, wanted_p, rtol=1e-4, atol=1e-6)
        assert torch.equal(cached, head.cache.data[:, :, : start + rows + chain - 1])


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.9, seed=4)], ids=["greedy", "sampled"])
@torch.inference_mode()
def test_a_chain_that_is_ended(sampling: Sampling, backend: TorchBackend) -> None:
    """Both ways ask with the same probabilities, and end where they are told to."""
    head, program, chain = backend._head, backend._program, 5
    noise = backend._noise_of(len(PROMPT) + 2, chain + 1, sampling)

    def end(at: int, fate: Fate) -> tuple[list[float], Callable[[float], Fate]]:
        asked: list[float] = []

        def worth(p: float) -> Fate:
            asked.append(p)
            return Fate.MORE if len(asked) <= at else fate

        return asked, worth

    for at, fate in itertools.product(range(chain + 1), (Fate.DROPPED, Fate.LAST)):
        taps, tokens = rows_of(backend, 2)
        start = head.cache.rows
        asked, worth = end(at, fate)
        got, got_p = program(taps, tokens, chain, sampling, noise, worth)
        head.cache.keep(start)
        ids = torch.tensor(tokens)
        out = head(ids, head.fuse(taps), start)
        head.cache.advance(2)
        wanted_asked, worth = end(at, fate)
        wanted, wanted_p = propose(head, ids, out, chain, sampling, noise, None, worth)
        verified = min(chain, at + (fate is Fate.LAST))
        assert got.tolist() == wanted.tolist() and len(got) == verified + 1 and len(asked) == min(chain, at + 1)
        torch.testing.assert_close(got_p, wanted_p, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(torch.tensor(asked), torch.tensor(wanted_asked), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(torch.tensor(asked[:verified]), got_p[:-1])
        head.cache.keep(start)


def test_what_does_not_fit(tmp_path: Path) -> None:
    plain = TorchBackend(open_bundle(tiny_bundle(tmp_path)), dtype="float32")
    assert plain._program is None and not DraftProgram.fits(plain._head)
    plain.close()
