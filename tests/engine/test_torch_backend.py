"""The torch backend against the slow truth, round by round, on tiny random pairs in float32."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from reference import Reference, Truth
from safetensors.numpy import load_file, save_file
from tiny import tiny_bundle

from eagle3chat.engine import torch_backend
from eagle3chat.engine.backend import Verdict
from eagle3chat.engine.bundle import open_bundle
from eagle3chat.engine.config import Rope
from eagle3chat.engine.requests import Controls
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.speculate import agreed, speculate
from eagle3chat.engine.torch_backend import TorchBackend

GREEDY = Sampling()
WARM = Sampling(temperature=0.8, seed=7)
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


def opened(path: Path, **options: object) -> TorchBackend:
    return TorchBackend(open_bundle(path), **({"device": "cpu", "dtype": "float32"} | options))


def prompt(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, VOCAB) for _ in range(length)]


def prefilled(backend: TorchBackend, tokens: Sequence[int], keep: int = 0) -> list[int]:
    return list(backend.prefill(tokens, keep))


def play(backend: TorchBackend, tokens: list[int], chain: int, sampling: Sampling) -> tuple[Verdict, int]:
    """One round; `tokens` grows by what it emits."""
    verdict = backend.verify(backend.draft(chain, sampling), sampling)
    accepted = agreed(verdict)
    backend.commit(accepted, verdict.chosen[accepted])
    tokens += [*verdict.drafted[:accepted], verdict.chosen[accepted]]
    return verdict, accepted


def assert_true(verdict: Verdict, truth: Truth, near: float = NEAR) -> None:
    assert verdict.drafted == truth.drafted
    assert verdict.chosen == truth.chosen
    for name in ("draft_p", "target_p", "chosen_p", "margin"):
        assert getattr(verdict, name) == pytest.approx(getattr(truth, name), abs=near), name
    for got, wanted in zip(verdict.runners_up, truth.runners_up, strict=True):
        got, wanted = [(i, p) for i, p in got if p > 1e-6], [(i, p) for i, p in wanted if p > 1e-6]
        assert [i for i, _ in got] == [i for i, _ in wanted]
        assert [p for _, p in got] == pytest.approx([p for _, p in wanted], abs=near)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stirred(tmp_path_factory.mktemp("pair"), agree=0.9)


def test_every_round_says_what_the_slow_truth_says(pair: Path) -> None:
    backend, reference = opened(pair), Reference(pair)
    rng = random.Random(3)
    seen: Counter[tuple[int, int]] = Counter()
    for turn in range(2):
        tokens = prompt(40, seed=turn)
        prefilled(backend, tokens)
        while len(tokens) < 200:
            chain = rng.choice((0, 1, 2, 2, 3, 3, 3, 3, 4, 6))
            sampling = rng.choice((GREEDY, WARM))
            truth = reference.round(tokens, chain, sampling)
            verdict, accepted = play(backend, tokens, chain, sampling)
            assert_true(verdict, truth)
            seen[chain, accepted] += 1
    missing = [(k, a) for k in (0, 1, 2, 3) for a in range(k + 1) if not seen[k, a]]
    assert not missing, f"no round with these (chain, accepted): {missing}"
    assert any(chain == 6 for chain, _ in seen)


VARIANTS = {
    "norm before residual": {"norm_before_residual": True},
    "normed output fed back": {"norm_output": True},
    "q and k norms": {"qk_norm": True},
    "biases": {"attention_bias": True},
    "tied": {"tied": True},
    "first and last boundary": {"taps": (0, 2, 4)},
    "one tap as wide as a feature": {"taps": (3,)},
    "own embedding": {"own_embedding": True},
    "own head size": {"draft_head_dim": 32},
    "llama3 rope": {"rope": Rope("llama3", 500.0, 8.0, 1.0, 4.0, 32)},
    "linear rope": {"rope": Rope("linear", 100.0, 2.0)},
    "one key head": {"kv_heads": 1},
    "float16 file": {"dtype": "F16"},
    "quantised file": {"quantized": True},
    "all heads": {"kv_heads": 4, "draft_vocab": VOCAB},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_flag_says_what_the_slow_truth_says(name: str, tmp_path: Path) -> None:
    path = tiny_bundle(tmp_path, agree=0.8, **VARIANTS[name])
    backend, reference = opened(path), Reference(path)
    tokens = prompt(37)
    prefilled(backend, tokens)
    for chain, sampling in ((3, GREEDY), (2, WARM), (0, WARM), (3, WARM)):
        truth = reference.round(tokens, chain, sampling)
        verdict, _ = play(backend, tokens, chain, sampling)
        assert_true(verdict, truth)


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=1.1, top_p=0.9, seed=2)], ids=["greedy", "warm"])
def test_text_does_not_depend_on_the_chain(pair: Path, sampling: Sampling) -> None:
    texts = []
    for chains in ([0], [1], [3], [8], [0, 3, 1, 5, 2]):
        backend, turn = opened(pair), itertools.cycle(chains)
        prefilled(backend, prompt(33))
        steps = speculate(
            backend, 33, lambda turn=turn: Controls(next(turn), sampling), lambda ids: (len(ids), False), 120
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
    rows = len(tokens) - 1
    assert backend._head.cache.rows == fresh._head.cache.rows == rows
    ours, theirs = (each._head.cache.data[:, :, :rows] for each in (backend, fresh))
    torch.testing.assert_close(ours, theirs, atol=NEAR, rtol=NEAR)
    assert a.drafted == b.drafted
    assert a.draft_p == pytest.approx(b.draft_p, abs=NEAR)


def test_draft_cache_survives_many_plain_rounds(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_backend, "PENDING_ROWS", 24)
    backend, tokens = opened(pair), prompt(40)
    reference = Reference(pair)
    prefilled(backend, tokens)
    for _ in range(24 + 9):
        play(backend, tokens, 0, WARM)
        assert len(backend._pending.tokens) <= 24
    truth = reference.round(tokens, 3, WARM)
    assert_true(play(backend, tokens, 3, WARM)[0], truth)


@pytest.mark.parametrize("chain", [0, 3])
@pytest.mark.parametrize("keep", [0, 1, 17, 40, 43])
def test_prefill_on_kept_rows_equals_a_fresh_one(pair: Path, keep: int, chain: int) -> None:
    backend, tokens = opened(pair), prompt(40)
    prefilled(backend, tokens)
    while len(tokens) < 45:
        play(backend, tokens, chain, GREEDY)
    edited = tokens[: keep + 1] + prompt(50, seed=9)
    assert prefilled(backend, edited, keep)[-1] == len(edited) - 1
    fresh = opened(pair)
    prefilled(fresh, edited)
    for ours, theirs in ((backend._target.cache, fresh._target.cache), (backend._head.cache, fresh._head.cache)):
        assert ours.rows == theirs.rows
        rows = slice(ours.rows)
        torch.testing.assert_close(ours.data[:, :, rows], theirs.data[:, :, rows], atol=NEAR, rtol=NEAR)
    truth = Reference(pair).round(edited, 3, WARM)
    assert_true(play(backend, edited, 3, WARM)[0], truth)


@pytest.mark.parametrize("stop_after", [1, 2, 3])
def test_a_prefill_that_stops_leaves_what_it_said(pair: Path, stop_after: int) -> None:
    backend, tokens = opened(pair), prompt(110)
    done = list(itertools.islice(backend.prefill(tokens, 0), stop_after))[-1]
    assert done == 32 * stop_after
    assert backend._target.cache.rows == done
    assert list(backend.prefill(tokens, done))[-1] == 109
    truth = Reference(pair).round(tokens, 3, GREEDY)
    assert_true(play(backend, tokens, 3, GREEDY)[0], truth)


@pytest.mark.parametrize("length", [1, 2, 3, 32, 33, 34, 64, 65, 66])
def test_prompt_lengths_around_the_chunk(pair: Path, length: int) -> None:
    backend, reference, tokens = opened(pair), Reference(pair), prompt(length)
    done = prefilled(backend, tokens)
    assert done == [*range(32, length - 1, 32), *([length - 1] if length > 1 else [])]
    for chain in (3, 3):
        truth = reference.round(tokens, chain, WARM)
        verdict, _ = play(backend, tokens, chain, WARM)
        assert_true(verdict, truth)


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


def test_one_row_and_four_rows_agree(pair: Path) -> None:
    backend, tokens = opened(pair), prompt(40)
    prefilled(backend, tokens)
    with torch.inference_mode():
        ids = torch.tensor(prompt(4, seed=4))
        together = backend._target.logits(backend._target(ids)[0])
        alone = []
        for i in range(4):
            alone.append(backend._target.logits(backend._target(ids[i : i + 1])[0]))
            backend._target.cache.advance(1)
    torch.testing.assert_close(torch.cat(alone), together, atol=NEAR, rtol=NEAR)


def test_a_round_reads_the_device_once(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, tokens = opened(pair), prompt(40)
    prefilled(backend, tokens)
    play(backend, tokens, 3, WARM)
    reads: list[str] = []
    for name in ("tolist", "item", "__bool__", "__int__", "__float__", "__index__", "numpy", "cpu", "nonzero"):
        original = getattr(torch.Tensor, name)

        def counted(self, *args, _name=name, _original=original, **options):
            reads.append(_name)
            return _original(self, *args, **options)

        monkeypatch.setattr(torch.Tensor, name, counted)
    for chain, sampling in ((3, GREEDY), (3, WARM), (0, WARM), (4, Sampling(0.7, top_k=40, top_p=0.9, min_p=0.05))):
        reads.clear()
        play(backend, tokens, chain, sampling)
        assert reads == ["tolist"]


def test_a_bundle_without_a_draft_decodes_plainly(tmp_path: Path) -> None:
    path = tiny_bundle(tmp_path, draft=False)
    backend, reference, tokens = opened(path), Reference(path), prompt(20)
    assert backend.max_chain == 0
    prefilled(backend, tokens)
    for _ in range(3):
        truth = reference.round(tokens, 0, WARM)
        verdict, _ = play(backend, tokens, 3, WARM)
        assert_true(verdict, truth)


def test_a_flat_distribution_sorts_the_whole_vocabulary(tmp_path: Path) -> None:
    path = tiny_bundle(tmp_path, vocab=2048, sharp=0.2)
    backend, reference, tokens = opened(path), Reference(path), prompt(20)
    prefilled(backend, tokens)
    sampling = Sampling(temperature=1.0, top_p=0.97, seed=4)
    truth = reference.round(tokens, 2, sampling)
    assert_true(play(backend, tokens, 2, sampling)[0], truth)


def test_close_twice(pair: Path) -> None:
    backend = opened(pair)
    assert backend.memory_bytes > 0
    backend.close()
    backend.close()
    assert backend.memory_bytes == 0
