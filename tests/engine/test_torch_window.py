"""Targets with sliding windows and shared keys and values: exact after the window has wrapped, whatever is drafted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from families import CONFIGS, VOCAB, WINDOW, WINDOWED, family_checkpoint, true_logits
from safetensors.numpy import save_file

from eagle3chat.engine import torch_cache
from eagle3chat.engine.backend import Verdict
from eagle3chat.engine.bundle import open_bundle
from eagle3chat.engine.config import DraftConfig, Rope
from eagle3chat.engine.export import export_bundle
from eagle3chat.engine.layout import TARGET_IDS, draft_tensors
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.torch_backend import TorchBackend
from eagle3chat.engine.torch_cache import Caches, SlidingCache
from eagle3chat.engine.torch_device import Mark
from eagle3chat.engine.torch_proposal import TorchDraft

FAMILIES = tuple(family for family in WINDOWED if family != "gemma4_moe")  # its windows are gemma4's
GREEDY, CHUNK, COUNT = Sampling(), 20, 60
SLACK = 12
PROMPT = [(7 * i * i + 3 * i) % VOCAB for i in range(30)]


@pytest.fixture(scope="module", params=FAMILIES)
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of each family, a bundle of it with a random draft beside it."""
    directory = tmp_path_factory.mktemp(request.param)
    path = family_checkpoint(directory, request.param)
    draft = random_draft(directory / "draft", CONFIGS[request.param]["num_hidden_layers"])
    export_bundle(path, draft, directory / "bundle", max_prefill=CHUNK, max_seq_len=160)
    return path


@pytest.fixture
def backend(source: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TorchBackend]:
    """With so little slack that the windows move every few rows."""
    monkeypatch.setattr(torch_cache, "SLACK", SLACK)
    made = opened(source)
    yield made
    made.close()


def opened(source: Path, context: int | None = None) -> TorchBackend:
    return TorchBackend(open_bundle(source.parent / "bundle"), device="cpu", dtype="float32", context=context)


def random_draft(path: Path, layers: int) -> Path:
    """An EAGLE-3 draft that is never right, with taps at both ends of the target."""
    config = DraftConfig(64, 96, 4, 2, 16, 1e-5, Rope(), VOCAB, 64, (0, layers // 2, layers))
    rng = np.random.default_rng(5)
    shapes = {name: shape for name, shape in draft_tensors(config).items() if name != TARGET_IDS}
    tensors = {name: (0.2 * rng.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}
    path.mkdir()
    save_file(
        {name.replace("layers.0.", "midlayer."): value for name, value in tensors.items()}, path / "model.safetensors"
    )
    values = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    values |= {"vocab_size": VOCAB, "draft_vocab_size": VOCAB, "rms_norm_eps": 1e-5}
    values |= {"eagle_aux_hidden_state_layer_ids": list(config.taps)}
    (path / "config.json").write_text(json.dumps(values))
    return path


def begin(backend: TorchBackend, tokens: Sequence[int], keep: int = 0) -> list[int]:
    return list(backend.prefill(tokens, keep))


def judged(backend: TorchBackend, anchor: int, guesses: Sequence[int]) -> Verdict:
    """A round with these drafted tokens."""
    tokens = torch.tensor([anchor, *guesses])
    now = Mark(torch.device("cpu"))
    return backend.verify(TorchDraft(tokens, torch.zeros(len(tokens)), None, 0, now, now), GREEDY)


def plain(backend: TorchBackend, prompt: Sequence[int], count: int) -> list[int]:
    """What the target alone says after a prompt that is cached."""
    text, anchor = [], prompt[-1]
    while len(text) < count:
        anchor = judged(backend, anchor, ()).chosen[0]
        backend.commit(0, anchor)
        text.append(anchor)
    return text


def mixed(backend: TorchBackend, prompt: Sequence[int], truth: Sequence[int], seed: int) -> tuple[list[int], set]:
    """The same with chains of 0 to 6 tokens, right up to a place that is drawn; and (chain, accepted) of each round."""
    rng = np.random.default_rng(seed)
    text, anchor, seen = [], prompt[-1], set()
    while len(text) < len(truth):
        ahead = [*truth[len(text) :], *[0] * 8]
        chain = int(rng.integers(0, 7))
        right = int(rng.integers(0, chain + 1))
        guesses = [*ahead[:right], *((token + 1) % VOCAB for token in ahead[right:chain])]
        verdict = judged(backend, anchor, guesses)
        accepted = next((i for i in range(chain) if verdict.chosen[i] != guesses[i]), chain)
        anchor = verdict.chosen[accepted]
        backend.commit(accepted, anchor)
        text += [*guesses[:accepted], anchor]
        seen.add((chain, accepted))
    return text[: len(truth)], seen


def test_every_mix_of_chains_says_what_transformers_says(source: Path, backend: TorchBackend) -> None:
    begin(backend, PROMPT)
    text = plain(backend, PROMPT, COUNT)
    logits = true_logits(source, [*PROMPT, *text])[len(PROMPT) - 1 : -1]
    best = np.sort(logits, 1)
    assert (best[:, -1] - best[:, -2]).min() > 1e-3  # no near tie hides a fault
    assert text == logits.argmax(1).tolist()
    seen = set()
    for seed in range(4):
        begin(backend, PROMPT)
        said, rounds = mixed(backend, PROMPT, text, seed)
        assert said == text
        seen |= rounds
    assert {accepted for _, accepted in seen} == set(range(7))


@pytest.mark.parametrize("source", ["gemma4_moe", "qwen3_moe"], indirect=True)
def test_so_do_mixtures_of_experts(source: Path, backend: TorchBackend) -> None:
    test_every_mix_of_chains_says_what_transformers_says(source, backend)


def test_a_draft_of_its_own_changes_nothing(backend: TorchBackend) -> None:
    """Through all four verbs, chains 0 to 6 in turn, sampled; taps at both ends of the target."""
    sampling = Sampling(temperature=1.0, seed=3)
    texts = []
    for chains in ([0], [3, 0, 6, 1, 5]):
        begin(backend, PROMPT)
        text: list[int] = []
        while len(text) < COUNT:
            verdict = backend.verify(backend.draft(chains[len(text) % len(chains)], sampling), sampling)
            pairs = zip(verdict.drafted, verdict.chosen, strict=False)
            accepted = next((i for i, (guess, own) in enumerate(pairs) if guess != own), len(verdict.drafted))
            backend.commit(accepted, verdict.chosen[accepted])
            text += verdict.chosen[: accepted + 1]
        texts.append(text[:COUNT])
    assert texts[0] == texts[1]


def quick(backend: TorchBackend, prompt: Sequence[int], text: Sequence[int]) -> None:
    """Decode a text that is known, nine tokens a round."""
    begin(backend, prompt)
    anchor, done = prompt[-1], 0
    while done < len(text):
        guesses = text[done : done + 8]
        anchor = judged(backend, anchor, guesses).chosen[len(guesses)]
        backend.commit(len(guesses), anchor)
        done += len(guesses) + 1


def probabilities(backend: TorchBackend, anchor: int) -> list[float]:
    """Of the likeliest tokens at the next six rows, whatever they are: the caches told apart."""
    return [p for row in judged(backend, anchor, (9, 8, 7, 6, 5)).runners_up for _, p in row]


def test_any_prefix_can_be_kept(source: Path, backend: TorchBackend) -> None:
    """Where a window has passed over it, the rows are computed again, and the yields say so."""
    begin(backend, PROMPT)
    text = plain(backend, PROMPT, COUNT)
    whole, fresh, kept = [*PROMPT, *text], opened(source), {}
    for keep in (0, 1, 6, 7, 8, 20, 29, 40, 60, 70, *range(76, 89)):
        quick(backend, PROMPT, text)
        prompt = [*whole[: keep + 1], 5, 6, 7]
        done = begin(backend, prompt, keep)
        kept[keep] = min(keep, done[0])
        assert done[-1] == len(prompt) - 1
        begin(fresh, prompt)
        assert backend._target.cache.rows == backend._head.cache.rows + 1 == len(prompt) - 1
        assert probabilities(backend, 7) == pytest.approx(probabilities(fresh, 7), abs=1e-5)
    assert all(kept[keep] == keep for keep in range(83, 89))  # half of the slack is always there
    assert {kept[keep] for keep in range(61) if keep in kept} == {0}


def test_a_plain_trim_of_a_window_is_caught(backend: TorchBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: rows are dropped by number alone, and what the window has lost is read from elsewhere."""
    begin(backend, PROMPT)
    text = plain(backend, PROMPT, COUNT)
    prompt = [*PROMPT, *text[:11], 5, 6, 7]
    begin(backend, prompt)
    truth = probabilities(backend, 7)

    def trimmed(cache: SlidingCache, rows: int) -> bool:
        cache.first = min(cache.first, max(0, rows - cache.window + 1))
        return True

    monkeypatch.setattr(SlidingCache, "holds", trimmed)
    quick(backend, PROMPT, text)
    assert begin(backend, prompt, 40)[0] > 40
    assert probabilities(backend, 7) != pytest.approx(truth, abs=1e-3)


def test_windows_cost_the_same_in_any_context(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_cache, "SLACK", SLACK)
    sizes = []
    for context in (120, 160):
        backend = opened(source, context)
        caches = backend._target.cache
        assert isinstance(caches, Caches)
        sliding = next(part for part in caches.parts if isinstance(part, SlidingCache))
        prompt = PROMPT * 3
        begin(backend, prompt)
        plain(backend, prompt, 25)
        sizes.append(sliding.nbytes)
        assert sliding.data.shape[2] == WINDOW - 1 + SLACK // 2 + CHUNK  # a chunk is longer than the slack
        assert sliding.rows == 114
    assert sizes[0] == sizes[1]


def test_layers_that_share_have_no_cache(source: Path) -> None:
    backend = opened(source)
    config, caches = backend._target.config, backend._target.cache
    assert isinstance(caches, Caches)
    own = config.num_layers - config.shared_kv_layers
    assert sum(part.data.shape[0] for part in caches.parts) == own
    assert [caches.place(layer) for layer in range(own, config.num_layers)] == [
        caches.place(config.cache_layer(layer)) for layer in range(own, config.num_layers)
    ]
