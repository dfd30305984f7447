"""A round of the MLX backend waits for the device once: the host reads one small array, and evaluates nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_bundle

mx = pytest.importorskip("mlx.core")

from eagle3chat.engine import mlx_backend  # noqa: E402
from eagle3chat.engine.bundle import open_bundle  # noqa: E402
from eagle3chat.engine.mlx_backend import PENDING_ROWS, MlxBackend  # noqa: E402
from eagle3chat.engine.requests import Controls  # noqa: E402
from eagle3chat.engine.sampling import Sampling  # noqa: E402
from eagle3chat.engine.speculate import speculate  # noqa: E402

READS = ("item", "tolist", "__array__", "__bool__", "__float__", "__index__", "__int__", "__iter__", "__dlpack__")


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what has waited, as it happens: evaluations, and the ways of an array to the host."""
    seen: list[str] = []

    def counted(owner: Any, name: str) -> None:
        own = getattr(owner, name)

        def waiting(*args: Any, **options: Any) -> Any:
            seen.append(name)
            return own(*args, **options)

        monkeypatch.setattr(owner, name, waiting)

    for name in READS:
        counted(mx.array, name)
    counted(mx, "eval")
    counted(mx, "synchronize")
    return seen


def opened(directory: Path, **options: Any) -> MlxBackend:
    backend = MlxBackend(open_bundle(tiny_bundle(directory, **options)), device="cpu", dtype="float32")
    for _ in backend.prefill([5, 9, 7, 11, 8], 0):
        pass
    return backend


def decode(backend: MlxBackend, chain: int, sampling: Sampling, tokens: int) -> int:
    """The number of rounds."""
    controls = Controls(chain, sampling)
    cut = lambda offered: (len(offered), False)  # noqa: E731
    return sum(1 for _ in speculate(backend, 5, lambda: controls, cut, tokens))


SAMPLINGS = {
    "greedy": Sampling(),
    "filtered": Sampling(temperature=0.8, top_k=40, top_p=0.9, min_p=0.02, seed=3),
    "penalised": Sampling(temperature=0.8, seed=3, repetition=1.2, presence=0.1, frequency=0.1),
}


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("chain", [0, 3])
def test_a_round_waits_for_the_device_once(chain: int, sampling: Sampling, syncs: list[str], tmp_path: Path) -> None:
    backend = opened(tmp_path)
    syncs.clear()
    rounds = decode(backend, chain, sampling, 20)
    assert rounds >= 5
    assert syncs == ["tolist"] * rounds


def test_a_draft_that_catches_up_while_nothing_is_drafted_waits_for_nothing(syncs: list[str], tmp_path: Path) -> None:
    backend = opened(tmp_path)
    syncs.clear()
    rounds = decode(backend, 0, Sampling(), PENDING_ROWS + 4)
    assert backend._head.cache.rows > 5  # it did
    assert syncs == ["tolist"] * rounds


def test_one_more_read_is_seen(syncs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = mlx_backend.judge

    def curious(logits: Any, *rest: Any) -> Any:
        logits.max().item()
        return judge(logits, *rest)

    monkeypatch.setattr(mlx_backend, "judge", curious)
    backend = opened(tmp_path)
    syncs.clear()
    rounds = decode(backend, 3, Sampling(), 8)
    assert syncs == ["item", "tolist"] * rounds


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x[0].item(),
        lambda x: x.tolist(),
        lambda x: bool(x[0] > 0),
        lambda x: int(x[0]),
        lambda x: float(x[0]),
        lambda x: [10, 11][x[0].astype(mx.int32)],
        lambda x: list(x),
        lambda x: mx.eval(x),
        lambda x: mx.synchronize(),
    ],
)
def test_every_way_to_the_host_counts(read: Callable[[Any], Any], syncs: list[str]) -> None:
    read(mx.arange(2.0))
    assert syncs


def test_what_stays_on_the_device_does_not_count(syncs: list[str]) -> None:
    x = mx.arange(4.0)
    y = mx.where(x > 1, x, 0.0)[mx.array([0, 2])]
    mx.async_eval(mx.softmax(y))
    assert not syncs
