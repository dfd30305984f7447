"""MLX from the outside: opening, both backends side by side, sessions, the worker, and the default pair."""

from __future__ import annotations

import builtins
import itertools
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from tiny import tiny_bundle

from eagle3chat.engine import mlx_device, pair
from eagle3chat.engine.default_pair import default_bundle
from eagle3chat.engine.errors import BackendError
from eagle3chat.engine.events import Finished, Ready, Round
from eagle3chat.engine.pair import Pair, open_pair
from eagle3chat.engine.requests import Controls, Message, PairOptions, Say
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.session import Session
from eagle3chat.engine.worker import DecodeWorker

NEAR = 1e-4
GREEDY = Sampling()
WARM = Sampling(temperature=0.9, top_k=60, top_p=0.95, min_p=0.01, seed=5)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bundle(tmp_path_factory.mktemp("pair"), agree=0.9)


def opened(path: Path, backend: str, **options: object) -> Pair:
    return open_pair(PairOptions(**({"bundle": str(path), "backend": backend, "dtype": "float32"} | options)))


def ask(*texts: str) -> tuple[Message, ...]:
    return tuple(Message("assistant" if i % 2 else "user", text) for i, text in enumerate(texts))


def rounds(session: Session, say: Say, chains: Sequence[int] = (3,)) -> tuple[list[Round], Finished]:
    """All rounds of a reply; the next of `chains` in each."""
    turning, told = itertools.cycle(chains), []
    for event in session.reply(say):
        if isinstance(event, Round):
            told.append(event)
            session.controls = Controls(next(turning), say.controls.sampling)
    assert isinstance(event, Finished)
    return told, event


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "warm"])
def test_both_backends_say_the_same(quantized: bool, sampling: Sampling, tmp_path: Path) -> None:
    path = tiny_bundle(tmp_path, agree=0.9, quantized=quantized)
    say = Say(ask("Say something of some length."), Controls(3, sampling), 40)
    ours, theirs = (
        rounds(Session(opened(path, backend, device="cpu")), say, (3, 1, 0, 5)) for backend in ("mlx", "torch")
    )
    assert len(ours[0]) == len(theirs[0])
    for a, b in zip(ours[0], theirs[0], strict=True):
        assert a.text == b.text
        assert [t.id for t in a.tokens] == [t.id for t in b.tokens]
        assert [t.id for t in a.drafted] == [t.id for t in b.drafted]
        for name in ("draft_p", "target_p"):
            mine, other = ([getattr(t, name) for t in each.drafted] for each in (a, b))
            assert mine == pytest.approx(other, abs=NEAR), name
    assert ours[1].reason == theirs[1].reason


def test_info_tells_what_runs(bundle: Path) -> None:
    info = opened(bundle, "mlx", device="cpu", dtype="auto").info
    assert (info.backend, info.device, info.dtype, info.max_chain, info.unavailable) == ("mlx", "cpu", "float32", 8, "")
    assert info.memory_bytes > 0 and info.capacity == 256


def test_a_session_goes_on_like_a_fresh_one(bundle: Path) -> None:
    """A cancelled reply, then another turn, then an edited first turn: all as on sessions that never had another."""
    shared = opened(bundle, "mlx", device="cpu")
    session, fresh = Session(shared), opened(bundle, "mlx", device="cpu")
    controls = Controls(3, WARM)
    running = session.reply(Say(ask("One, two, three."), controls, 40))
    said = [next(event for event in running if isinstance(event, Round)).text]
    session.cancel()
    said += [event.text for event in running if isinstance(event, Round)]
    for texts in (("One, two, three.", "".join(said), "Four!"), ("One, two, tree.",), ("One, two, tree.", "x", "y")):
        again, alone = (rounds(s, Say(ask(*texts), controls, 12)) for s in (session, Session(fresh)))
        assert [r.text for r in again[0]] == [r.text for r in alone[0]]
        assert session.committed[: len(texts)]
        fresh = opened(bundle, "mlx", device="cpu")


def test_the_worker_decodes_with_it(bundle: Path) -> None:
    """In a process of its own, on its main thread."""
    events: list[object] = []
    done = threading.Event()

    def on_event(event: object) -> None:
        events.append(event)
        if isinstance(event, Finished) or type(event).__name__ == "Failed":
            done.set()

    options = PairOptions(bundle=str(bundle), backend="mlx", device="cpu", dtype="float32")
    worker = DecodeWorker(options, on_event)
    try:
        worker.start()
        worker.say(Say(ask("Hello there."), Controls(3, GREEDY), 20))
        assert done.wait(60), events
    finally:
        worker.close()
    assert any(isinstance(event, Ready) and event.info.backend == "mlx" for event in events)
    text = "".join(event.text for event in events if isinstance(event, Round))
    alone, _ = rounds(
        Session(opened(bundle, "mlx", device="cpu")), Say(ask("Hello there."), Controls(0, GREEDY), 20), (0,)
    )
    assert text == "".join(r.text for r in alone) and isinstance(events[-1], Finished)


def without(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    """As where a library is not installed."""
    real = builtins.__import__

    def refuse(name: str, *args: object, **options: object) -> object:
        if name.partition(".")[0] == library:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *args, **options)

    for module in [m for m in sys.modules if m.startswith("eagle3chat.engine.mlx_")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", refuse)


@pytest.mark.parametrize("library", ["mlx", "mlx_lm"])
def test_a_missing_library_is_told_in_a_sentence(library: str, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, library)
    with pytest.raises(BackendError) as caught:
        opened(bundle, "mlx")
    assert str(caught.value) == f"{library} is not installed. Run: pip install 'eagle3chat[mlx]'"


@pytest.mark.parametrize(
    ("platform", "metal", "installed", "device", "wanted"),
    [
        ("darwin", True, True, "auto", "mlx"),
        ("darwin", True, True, "cpu", "mlx"),
        ("darwin", True, True, "cuda", "torch"),
        ("darwin", False, True, "auto", "torch"),
        ("darwin", True, False, "auto", "torch"),
        ("linux", True, True, "auto", "torch"),
    ],
)
def test_auto_is_mlx_where_it_has_metal(
    platform: str, metal: bool, installed: bool, device: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(mlx_device, "has_metal", lambda: metal)
    monkeypatch.setattr(pair, "find_spec", lambda name: object() if installed else None)
    assert pair._auto(PairOptions(device=device)) == wanted


def test_the_default_pair_replies_as_on_torch(tmp_path: Path) -> None:
    """Greedy, chain 3, 16 tokens, in float32 on the CPU: the same text, and the same figures."""
    path = default_bundle(tmp_path)
    say = Say(ask("The sky is blue because"), Controls(3, GREEDY), 16, raw=True)  # short: MLX is slow on a CPU
    told = []
    for backend in ("torch", "mlx"):
        one = opened(path, backend, device="cpu", context=256)
        told.append(rounds(Session(one), say)[0])
        one.close()
    theirs, ours = told
    assert [r.text for r in ours] == [r.text for r in theirs]
    assert len(ours) < 16, "nothing was accepted"
    for a, b in zip(ours, theirs, strict=True):
        assert [t.id for t in a.drafted] == [t.id for t in b.drafted]
        assert [t.draft_p for t in a.drafted] == pytest.approx([t.draft_p for t in b.drafted], abs=NEAR)
        assert [t.target_p for t in a.drafted] == pytest.approx([t.target_p for t in b.drafted], abs=NEAR)
