"""A round of the torch backend reads from the device once.

Counted on a CPU with the compiled kernels off, so that a round runs the operations that it runs on a GPU: whatever
would have the host wait for a device there is an operation here, or a method of a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from captures import Again
from tiny import tiny_bundle
from torch.utils._python_dispatch import TorchDispatchMode

from eagle3chat.engine import torch_backend, torch_choice
from eagle3chat.engine.bundle import open_bundle
from eagle3chat.engine.requests import Controls
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.speculate import speculate
from eagle3chat.engine.torch_backend import TorchBackend
from eagle3chat.kernels.cpu import SWITCH, library

WAITS = {
    # they give a value to the host
    "item",
    "_local_scalar_dense",
    "is_nonzero",
    "equal",
    # their result is as long as the values say
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_dim",
    "bincount",
    "repeat_interleave.self_Tensor",
    "repeat_interleave.Tensor",
}
READS = ("tolist", "numpy", "cpu", "__array__", "__dlpack__")


class Syncs(TorchDispatchMode):
    """Counts what would wait for a device, while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.name().removeprefix("aten::")
        masks = name.startswith("index") and any(
            isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)
            for index in (args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else ())
        )
        if name in WAITS or name.partition(".")[0] in WAITS or masks:
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    """A counter, in which a tensor's own ways to the host count as well."""
    counter = Syncs()

    def counted(name: str) -> Callable[..., Any]:
        own = getattr(torch.Tensor, name)

        def read(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
            counter.seen.append(name)
            return own(tensor, *args, **options)

        return read

    for name in READS:
        monkeypatch.setattr(torch.Tensor, name, counted(name))
    return counter


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No compiled kernels, and the nucleus that a GPU computes."""
    monkeypatch.setenv(SWITCH, "off")
    library.cache_clear()
    monkeypatch.setattr(
        torch_choice,
        "nucleus",
        lambda p, top_p, *more: torch_choice._least(p.sort(-1, descending=True).values, top_p),
    )
    yield
    monkeypatch.undo()
    library.cache_clear()


def opened(directory: Path, capture: Again | None = None, **options: Any) -> TorchBackend:
    bundle = open_bundle(tiny_bundle(directory, **options))
    backend = TorchBackend(bundle, device="cpu", dtype="float32", capture=capture)
    assert backend._program is None and backend._target.program is None
    for _ in backend.prefill([5, 9, 7, 11, 8], 0):
        pass
    return backend


def decode(backend: TorchBackend, chain: int, sampling: Sampling, tokens: int) -> int:
    """The number of rounds."""
    controls = Controls(chain, sampling)
    cut = lambda offered: (len(offered), False)  # noqa: E731
    return sum(1 for _ in speculate(backend, 5, lambda: controls, cut, tokens))


SAMPLINGS = {
    "greedy": Sampling(),
    "warm": Sampling(temperature=0.8, seed=3),
    "filtered": Sampling(temperature=0.8, top_k=40, top_p=0.9, min_p=0.02, seed=3),
    "penalised": Sampling(temperature=0.8, seed=3, repetition=1.2, presence=0.1, frequency=0.1),
}


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("chain", [0, 3])
def test_a_round_waits_for_the_device_once(chain: int, sampling: Sampling, syncs: Syncs, tmp_path: Path) -> None:
    backend = opened(tmp_path)
    with syncs:
        rounds = decode(backend, chain, sampling, 24)
    assert rounds >= 5
    assert syncs.seen == ["tolist"] * rounds


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("chain", [0, 3])
def test_so_does_a_recorded_round(chain: int, sampling: Sampling, syncs: Syncs, tmp_path: Path) -> None:
    capture = Again()
    backend = opened(tmp_path, capture)
    with syncs:
        rounds = decode(backend, chain, sampling, 24)
    assert sampling.penalises or capture.started >= rounds  # penalties are left to plain rounds
    assert syncs.seen == ["tolist"] * rounds


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize(
    "options", [{"qk_norm": True}, {"attention_bias": True}, {"tied": True}, {"own_embedding": True}], ids=str
)
def test_so_it_is_in_other_shapes(options: dict[str, bool], syncs: Syncs, tmp_path: Path) -> None:
    backend = opened(tmp_path, **options)
    with syncs:
        rounds = decode(backend, 3, SAMPLINGS["filtered"], 12)
    assert syncs.seen == ["tolist"] * rounds


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_draft_that_catches_up_while_nothing_is_drafted_waits_for_nothing(
    syncs: Syncs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_backend, "PENDING_ROWS", 24)
    backend = opened(tmp_path)
    with syncs:
        rounds = decode(backend, 0, Sampling(), 28)
    assert backend._head.cache.rows > 5  # it did
    assert syncs.seen == ["tolist"] * rounds


@pytest.mark.usefixtures("as_on_a_gpu")
def test_one_more_read_is_seen(syncs: Syncs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = torch_backend.judge

    def curious(logits: torch.Tensor, *rest: Any) -> torch.Tensor:
        logits.amax().item()
        return judge(logits, *rest)

    monkeypatch.setattr(torch_backend, "judge", curious)
    backend = opened(tmp_path)
    with syncs:
        rounds = decode(backend, 3, Sampling(), 8)
    assert syncs.seen == ["item", "tolist"] * rounds


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x[0].item(),
        lambda x: x.tolist(),
        lambda x: bool(x[0] > 0),
        lambda x: int(x[0]),
        lambda x: float(x[0]),
        lambda x: x.cpu(),
        lambda x: x.numpy(),
        lambda x: [10, 11, 12, 13][x[1].long()],
        lambda x: x[: x[1].long()],
        lambda x: x[x > 1],
        lambda x: x.nonzero(),
        lambda x: x.masked_select(x > 1),
        lambda x: x.unique(),
        lambda x: torch.equal(x, x),
        lambda x: torch.bincount(x.long()),
        lambda x: torch.repeat_interleave(x, x.long()),
    ],
)
def test_every_way_to_the_host_counts(read: Callable[[torch.Tensor], Any], syncs: Syncs) -> None:
    x = torch.arange(4.0)
    with torch.inference_mode(), syncs:
        read(x)
    assert syncs.seen


def test_what_stays_on_the_device_does_not_count(syncs: Syncs) -> None:
    x = torch.arange(4.0)
    with torch.inference_mode(), syncs:
        y = torch.where(x > 1, x, 0.0).masked_fill(x < 2, -1.0).softmax(-1)
        y[torch.tensor([0, 2])].topk(1)
        y.repeat_interleave(2).scatter_add_(0, torch.tensor([1]), torch.ones(1))
    assert not syncs.seen
