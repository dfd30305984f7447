"""The MLX backend against the slow truth, round by round, on tiny random pairs in float32 on the CPU."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from reference import Reference, Truth
from safetensors.numpy import load_file, save_file
from tiny import tiny_bundle

from eagle3chat.engine.backend import Verdict
from eagle3chat.engine.bundle import open_bundle
from eagle3chat.engine.config import Rope
from eagle3chat.engine.errors import BackendError
from eagle3chat.engine.mlx_backend import PENDING_ROWS, MlxBackend
from eagle3chat.engine.mlx_device import pick_dtype
from eagle3chat.engine.mlx_target import MlxTarget
from eagle3chat.engine.requests import Controls
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.speculate import agreed, speculate

GREEDY = Sampling()
WARM = Sampling(temperature=0.8, seed=7)
PENALISED = Sampling(0.9, top_p=0.95, seed=8, repetition=1.2, presence=0.3, frequency=0.2)
NEAR = 1e-4
VOCAB = 320


def stirred(directory: Path, seed: int = 1, **options: object) -> Path:
    """A tiny bundle whose draft attends to its whole past, so that a wrong or stale row of it shows."""
    path = tiny_bundle(directory, **options)
    file = path / "draft" / "model.safetensors"
    weights = load_file(file)
    rng = np.random.default_rng(seed)
    for name, weight in weights.items():
        noise = rng.standard_normal(weight.shape)
        if "proj" in name:
            weights[name] = (weight + 0.3 * noise * weight.shape[1] ** -0.5).astype(np.float32)
        elif "norm" in name:
            weights[name] = (weight * (1.0 + 0.2 * noise)).astype(np.float32)
    save_file(weights, file)
    return path


def opened(path: Path, **options: object) -> MlxBackend:
    return MlxBackend(open_bundle(path), **({"device": "cpu", "dtype": "float32"} | options))


def prompt(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, VOCAB) for _ in range(length)]


def prefilled(backend: MlxBackend, tokens: Sequence[int], keep: int = 0) -> list[int]:
    return list(backend.prefill(tokens, keep))


def play(backend: MlxBackend, tokens: list[int], chain: int, sampling: Sampling) -> tuple[Verdict, int]:
    """One round; `tokens` grows by what it emits."""
    verdict = backend.verify(backend.draft(chain, sampling), sampling)
    accepted = agreed(verdict)
    backend.commit(accepted, verdict.chosen[accepted])
    tokens += [*verdict.drafted[:accepted], verdict.chosen[accepted]]
    return verdict, accepted


def assert_true(verdict: Verdict, truth: Truth) -> None:
    assert verdict.drafted == truth.drafted
    assert verdict.chosen == truth.chosen
    for name in ("draft_p", "target_p", "chosen_p", "margin"):
        assert getattr(verdict, name) == pytest.approx(getattr(truth, name), abs=NEAR), name
    for got, wanted in zip(verdict.runners_up, truth.runners_up, strict=True):
        assert [p for _, p in got if p > 1e-5] == pytest.approx([p for _, p in wanted if p > 1e-5], abs=NEAR)


def draft_rows(backend: MlxBackend) -> np.ndarray:
    """What the draft's cache holds."""
    return np.array(mx.stack(backend._head.cache.arrays)[..., : backend._head.cache.rows, :])


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stirred(tmp_path_factory.mktemp("pair"), agree=0.95)


def test_every_round_says_what_the_slow_truth_says(pair: Path) -> None:
    backend, reference = opened(pair), Reference(pair)
    rng = random.Random(3)
    seen: Counter[tuple[int, int]] = Counter()
    for turn in range(2):
        tokens = prompt(40, seed=turn)
        prefilled(backend, tokens)
        while len(tokens) < 110:
            chain = rng.choice((0, 1, 2, 2, 2, 3, 3, 3, 3, 4, 5, 6))
            sampling = rng.choice((GREEDY, WARM, PENALISED))
            truth = reference.round(tokens, chain, sampling, 40)
            verdict, accepted = play(backend, tokens, chain, sampling)
            assert_true(verdict, truth)
            seen[chain, accepted] += 1
    assert {chain for chain, _ in seen} == set(range(7))
    assert {accepted for _, accepted in seen} >= set(range(4))
    assert any(chain == accepted for chain, accepted in seen if chain)


VARIANTS = {
    "norm before residual, normed output": {"norm_before_residual": True, "norm_output": True},
    "q and k norms": {"qk_norm": True},
    "biases": {"attention_bias": True},
    "tied": {"tied": True},
    "first and last boundary": {"taps": (0, 2, 4)},
    "one tap as wide as a feature": {"taps": (3,)},
    "own embedding, own head size": {"own_embedding": True, "draft_head_dim": 32},
    "llama3 rope": {"rope": Rope("llama3", 500.0, 8.0, 1.0, 4.0, 32)},
    "linear rope": {"rope": Rope("linear", 100.0, 2.0)},
    "float16 file": {"dtype": "F16"},
    "quantised file": {"quantized": True},
    "quantised and tied": {"quantized": True, "tied": True},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_kind_of_bundle_says_what_the_slow_truth_says(name: str, tmp_path: Path) -> None:
    path = tiny_bundle(tmp_path, agree=0.8, **VARIANTS[name])
    backend, reference = opened(path), Reference(path)
    tokens = prompt(37)
    prefilled(backend, tokens)
    for chain, sampling in ((3, GREEDY), (2, WARM), (0, WARM), (3, WARM)):
        truth = reference.round(tokens, chain, sampling)
        assert_true(play(backend, tokens, chain, sampling)[0], truth)


@pytest.mark.parametrize("sampling", [GREEDY, replace(PENALISED, temperature=1.1)], ids=["greedy", "penalised"])
def test_text_does_not_depend_on_the_chain(pair: Path, sampling: Sampling) -> None:
    texts, backend = [], opened(pair)
    for chains in ([0], [1], [3], [8], [0, 3, 1, 5, 2]):
        turn = itertools.cycle(chains)
        prefilled(backend, prompt(33))
        steps = speculate(
            backend, 33, lambda turn=turn: Controls(next(turn), sampling), lambda ids: (len(ids), False), 50
        )
        texts.append([token for step in steps for token in step.tokens])
    assert all(text == texts[0] for text in texts)


@pytest.mark.parametrize("chains", [(3,), (1, 0, 3, 0, 0, 2)], ids=["fixed", "mixed"])
def test_draft_cache_after_rounds_equals_a_fresh_one(pair: Path, chains: tuple[int, ...]) -> None:
    backend, tokens = opened(pair), prompt(40)
    prefilled(backend, tokens)
    for chain in itertools.islice(itertools.cycle(chains), 30):
        play(backend, tokens, chain, WARM)
    fresh = opened(pair)
    prefilled(fresh, tokens)
    a, b = (each.verify(each.draft(4, WARM), WARM) for each in (backend, fresh))
    assert backend._head.cache.rows == fresh._head.cache.rows == len(tokens) - 1
    assert np.abs(draft_rows(backend) - draft_rows(fresh)).max() < NEAR
    assert a.drafted == b.drafted
    assert a.draft_p == pytest.approx(b.draft_p, abs=NEAR)


def test_draft_cache_survives_many_plain_rounds(pair: Path) -> None:
    backend, tokens = opened(pair), prompt(40)
    prefilled(backend, tokens)
    for _ in range(PENDING_ROWS + 9):
        play(backend, tokens, 0, WARM)
        assert len(backend._pending.tokens) <= PENDING_ROWS
    truth = Reference(pair).round(tokens, 3, WARM)
    assert_true(play(backend, tokens, 3, WARM)[0], truth)


@pytest.mark.parametrize("chain", [0, 3])
@pytest.mark.parametrize("keep", [0, 1, 17, 40, 43])
def test_prefill_on_kept_rows_equals_a_fresh_one(pair: Path, keep: int, chain: int) -> None:
    backend, tokens = opened(pair), prompt(40)
    prefilled(backend, tokens)
    while len(tokens) < 45:
        play(backend, tokens, chain, GREEDY)
    edited = tokens[: keep + 1] + prompt(50, seed=9)
    first, *rest = prefilled(backend, edited, keep)
    assert first > keep and [first, *rest][-1] == len(edited) - 1
    fresh = opened(pair)
    prefilled(fresh, edited)
    assert backend._target.rows == fresh._target.rows and backend._head.cache.rows == fresh._head.cache.rows
    assert np.abs(draft_rows(backend) - draft_rows(fresh)).max() < NEAR
    truth = Reference(pair).round(edited, 3, WARM)
    assert_true(play(backend, edited, 3, WARM)[0], truth)


def test_a_target_that_cannot_go_back_starts_from_nothing(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, tokens = opened(pair), prompt(60)
    prefilled(backend, tokens)
    keep = MlxTarget.keep
    monkeypatch.setattr(
        MlxTarget, "keep", lambda self, rows: False if 0 < rows < self.rows - 9 else keep(self, rows), raising=True
    )
    edited = [*tokens[:31], *prompt(30, seed=5)]
    assert prefilled(backend, edited, 30) == [0, 32, 60]
    truth = Reference(pair).round(edited, 3, GREEDY)
    assert_true(play(backend, edited, 3, GREEDY)[0], truth)


def test_a_state_that_cannot_go_back_means_plain_decoding(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MlxTarget, "can_rollback", property(lambda self: False))
    backend, reference, tokens = opened(pair), Reference(pair), prompt(20)
    assert backend.max_chain == 0 and "cannot go back" in backend.unavailable
    prefilled(backend, tokens)
    for _ in range(3):
        truth = reference.round(tokens, 0, WARM)
        assert_true(play(backend, tokens, 3, WARM)[0], truth)


@pytest.mark.parametrize("stop_after", [1, 3])
def test_a_prefill_that_stops_leaves_what_it_said(pair: Path, stop_after: int) -> None:
    backend, tokens = opened(pair), prompt(110)
    done = list(itertools.islice(backend.prefill(tokens, 0), stop_after))[-1]
    assert done == 32 * stop_after == backend._target.rows
    assert prefilled(backend, tokens, done)[-1] == 109
    truth = Reference(pair).round(tokens, 3, GREEDY)
    assert_true(play(backend, tokens, 3, GREEDY)[0], truth)


@pytest.mark.parametrize("length", [1, 2, 3, 32, 33, 34, 65])
def test_prompt_lengths_around_the_chunk(pair: Path, length: int) -> None:
    backend, reference, tokens = opened(pair), Reference(pair), prompt(length)
    done = prefilled(backend, tokens)
    assert done == [*range(32, length - 1, 32), *([length - 1] if length > 1 else [])]
    for chain in (3, 3):
        truth = reference.round(tokens, chain, WARM)
        assert_true(play(backend, tokens, chain, WARM)[0], truth)


def test_the_context_ends_exactly(pair: Path) -> None:
    backend, reference, tokens = opened(pair, context=48), Reference(pair), prompt(40)
    assert backend.capacity == 48
    prefilled(backend, tokens)
    while len(tokens) <= 48:
        verdict = backend.verify(draft := backend.draft(5, WARM), WARM)
        assert draft.chain <= 48 - len(tokens)
        assert_true(verdict, reference.round(tokens, draft.chain, WARM))
        backend.commit(0, verdict.chosen[0])
        tokens.append(verdict.chosen[0])
    assert len(tokens) == 49


def test_what_a_round_builds_on_is_evaluated(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that is left behind would hold on to everything before it, and grow."""
    backend, tokens = opened(pair), prompt(70)
    evaluated: set[int] = set()
    for name in ("eval", "async_eval"):
        original = getattr(mx, name)

        def recorded(*trees: object, _original: Callable[..., None] = original) -> None:
            evaluated.update(id(array) for _, array in tree_flatten(trees))
            _original(*trees)

        monkeypatch.setattr(mx, name, recorded)

    def assert_evaluated(*more: mx.array) -> None:
        arrays = [*backend._target.cache_arrays(), *backend._head.cache.arrays, *more]
        assert arrays and {id(array) for array in arrays} <= evaluated
        evaluated.clear()

    for _ in backend.prefill(tokens, 0):
        assert_evaluated(*backend._pending.taps)
    for chain in (3, 0, 0, 2):
        backend.verify(backend.draft(chain, WARM), WARM)
        assert_evaluated(backend._verified[0])
        backend.commit(0, 5)


def test_low_precision_is_close_to_float32(tmp_path: Path) -> None:
    path = tiny_bundle(tmp_path, quantized=True, hidden=128, head_dim=32, agree=0.9)
    truth = Reference(path).round(prompt(40), 2, GREEDY)
    for dtype in ("bfloat16", "int4"):
        backend = opened(path, dtype=dtype)
        assert backend.dtype == dtype
        prefilled(backend, prompt(40))
        verdict = backend.verify(backend.draft(2, GREEDY), GREEDY)
        assert verdict.drafted[0] == truth.drafted[0]
        assert verdict.draft_p[0] == pytest.approx(truth.draft_p[0], abs=0.08)
        assert 0.0 < abs(verdict.chosen_p[0] - truth.chosen_p[0]) < 0.08


def test_auto_is_float32_on_a_cpu_and_small_on_a_gpu(tmp_path: Path) -> None:
    gpu = mx.Device(mx.gpu, 0)
    for quantized, small in ((True, "int4"), (False, "bfloat16")):
        directory = tmp_path / small
        directory.mkdir()
        path = tiny_bundle(directory, quantized=quantized)
        backend = opened(path, dtype="auto")
        assert (backend.device, backend.dtype) == ("cpu", "float32")
        assert pick_dtype("auto", open_bundle(path).manifest, gpu) == small


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": "cuda"}, "no device 'cuda'"),
        ({"dtype": "int4"}, "no 4-bit weights"),
        ({"dtype": "float8"}, "no dtype 'float8'"),
    ],
)
def test_refusals_name_what_is_wrong(options: dict[str, str], words: str, pair: Path) -> None:
    with pytest.raises(BackendError, match=words) as caught:
        opened(pair, **options)
    assert caught.value.fix


def test_a_gpu_that_is_not_there_is_refused(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx, "is_available", lambda device: False)
    with pytest.raises(BackendError, match="no GPU"):
        opened(pair, device="gpu")


def test_a_bundle_without_a_draft_decodes_plainly(tmp_path: Path) -> None:
    path = tiny_bundle(tmp_path, draft=False)
    backend, reference, tokens = opened(path), Reference(path), prompt(20)
    assert backend.max_chain == 0 and backend.unavailable == "the bundle has no draft"
    prefilled(backend, tokens)
    for _ in range(3):
        truth = reference.round(tokens, 0, WARM)
        assert_true(play(backend, tokens, 3, WARM)[0], truth)


def test_everything_on_a_thread_of_its_own(pair: Path) -> None:
    """MLX's streams belong to threads; the worker's is not the one that imported the library."""
    truth, said = Reference(pair).round(prompt(40), 3, WARM), []

    def work() -> None:
        backend = opened(pair)
        prefilled(backend, prompt(40))
        said.append(backend.verify(backend.draft(3, WARM), WARM))
        backend.close()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert_true(said[0], truth)


def test_close_twice_and_progress_ends_at_one(pair: Path) -> None:
    told: list[tuple[str, float | None]] = []
    backend = opened(pair, progress=lambda *what: told.append(what))
    shares = [share for _, share in told]
    assert shares == sorted(shares) and shares[-1] == 1.0
    assert {stage for stage, _ in told} == {"loading the target", "loading the draft"}
    assert backend.memory_bytes > sum(file.stat().st_size for file in pair.glob("*/model.safetensors"))
    backend.close()
    backend.close()
    assert backend.memory_bytes == 0
