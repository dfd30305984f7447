"""Recorded rounds against plain ones, with stand-ins for CUDA graphs: the same tokens, numbers and caches.

The code of the rounds is that of a CUDA device but for the recording itself and the GPU's attention kernel, which has
tests of its own. What only a device shows: that the recording holds, and its speed (tests/gpu/check.py).
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
import torch
from captures import Again, Broken, Refused, Strict
from families import CONFIGS, family_checkpoint
from test_torch_backend import GREEDY, WARM, opened, play, prefilled, prompt, stirred
from test_torch_window import random_draft

from eagle3chat.engine import torch_cache, torch_rounds
from eagle3chat.engine.backend import Verdict
from eagle3chat.engine.export import export_bundle
from eagle3chat.engine.pair_check import open_checked
from eagle3chat.engine.requests import Controls, PairOptions
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.speculate import speculate
from eagle3chat.engine.torch_backend import TorchBackend
from eagle3chat.engine.torch_graphs import Graphs, pick_graphs
from eagle3chat.engine.torch_linear import few_bits
from eagle3chat.kernels import cpu_linear
from eagle3chat.kernels.triton_linear import TritonLinear, packed_words

NEAR = 1e-4
SAMPLINGS = {
    "greedy": GREEDY,
    "warm": WARM,
    "filters": Sampling(temperature=1.1, top_k=40, top_p=0.9, min_p=0.02, seed=5),
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stirred(tmp_path_factory.mktemp("llama"), agree=0.9)


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Windows, shared keys and values, a second input of each layer, a cap on logits."""
    directory = tmp_path_factory.mktemp("gemma")
    path = family_checkpoint(directory, "gemma4_e")
    draft = random_draft(directory / "draft", CONFIGS["gemma4_e"]["num_hidden_layers"])
    export_bundle(path, draft, directory / "bundle", max_prefill=20, max_seq_len=160)
    return directory / "bundle"


@pytest.fixture
def few_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows that move every few rows, and bounds that a context of tests passes."""
    monkeypatch.setattr(torch_cache, "SLACK", 16)
    monkeypatch.setattr(torch_rounds, "LEAST_BOUND", 32)


@pytest.fixture(params=["llama", "gemma"])
def pair(request: pytest.FixtureRequest, few_slots: None) -> Path:
    path: Path = request.getfixturevalue(request.param)
    return path


def assert_alike(got: Verdict, wanted: Verdict) -> None:
    assert (got.drafted, got.chosen) == (wanted.drafted, wanted.chosen)
    for name in ("draft_p", "target_p", "chosen_p", "margin"):
        assert getattr(got, name) == pytest.approx(getattr(wanted, name), abs=NEAR), name
    firm = [[(i, p) for i, p in row if p > 1e-4] for row in wanted.runners_up]
    assert [[i for i, p in row if p > 1e-4] for row in got.runners_up] == [[i for i, _ in row] for row in firm]


def assert_same_rows(ours: TorchBackend, theirs: TorchBackend) -> None:
    """Counted rows of every cache, windows from the first row that is seen."""
    pairs = [(ours._target.cache, theirs._target.cache), (ours._head.cache, theirs._head.cache)]
    for mine, other in pairs:
        assert mine.rows == other.rows
        for a, b in zip(mine.parts, other.parts, strict=True):
            seen = max(0, a.rows - a.window + 1) if a.window else 0
            rows = [part.data[:, :, seen - part.first : part.rows - part.first] for part in (a, b)]
            torch.testing.assert_close(*rows, atol=NEAR, rtol=NEAR)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_chains_that_change_every_round(pair: Path, name: str) -> None:
    sampling, capture = SAMPLINGS[name], Strict()
    plain, recorded = opened(pair), opened(pair, capture=capture)
    texts = [prompt(30), prompt(30)]
    prefilled(plain, texts[0])
    prefilled(recorded, texts[1])
    chains = random.Random(1).sample([0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 0, 0, 0, 3, 6, 2], 20)
    for chain in chains:
        wanted, _ = play(plain, texts[0], chain, sampling)
        got, _ = play(recorded, texts[1], chain, sampling)
        assert recorded._rounds.live and not recorded.graphs
        assert_alike(got, wanted)
    assert texts[0] == texts[1]
    recorded._settle()
    assert_same_rows(recorded, plain)
    assert capture.started >= 2 * len(chains) - 8  # what was not drafted was verified


def test_logits_of_a_recorded_pass(pair: Path) -> None:
    plain, recorded = opened(pair), opened(pair, capture=Strict())
    for backend in (plain, recorded):
        prefilled(backend, prompt(30))
    ids = torch.tensor(prompt(5, seed=8))
    with torch.inference_mode():
        wanted, wanted_taps = plain._target(ids)
        rounds, cache = recorded._rounds, recorded._target.cache
        cache.prepare(5)
        start = torch.tensor([cache.rows])
        places = [
            torch_rounds.Place(start, torch.tensor([part.first]), rounds._bound(part, 5), False) for part in cache.parts
        ]
        got, taps = recorded._target.at(ids, places)
        torch.testing.assert_close(recorded._target.logits(got), plain._target.logits(wanted), atol=NEAR, rtol=NEAR)
    torch.testing.assert_close(taps, wanted_taps, atol=NEAR, rtol=NEAR)


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "warm"])
def test_text_of_a_loop_that_is_cut(llama: Path, sampling: Sampling) -> None:
    """Stops within a round, another prompt on kept rows, the end of the context."""
    texts = []
    for capture in (None, Again()):
        backend, said = opened(llama, context=96, capture=capture), []
        tokens = prompt(33)
        for keep, limit in ((0, 23), (30, 17), (40, 200)):
            prefilled(backend, tokens, keep)
            turn = itertools.cycle([3, 5, 0, 1, 6])
            steps = speculate(
                backend,
                len(tokens),
                lambda turn=turn: Controls(next(turn), sampling),
                lambda ids: (min(len(ids), 3), len(ids) > 4 and ids[2] % 5 == 0),
                limit,
            )
            said.append([token for step in steps for token in step.tokens])
            tokens = [*tokens, *said[-1], *prompt(5, seed=keep)][: 60 + keep // 2]
        texts.append(said)
    assert texts[0] == texts[1]
    assert len(texts[0][2]) > 20  # up to the end of the context


def test_a_round_that_was_cut_is_corrected(llama: Path) -> None:
    """The device accepted more than the host keeps."""
    plain, recorded = opened(llama), opened(llama, capture=Again())
    tokens = prompt(40)
    for backend in (plain, recorded):
        prefilled(backend, tokens)
    cut = 0
    for turn in range(30):
        verdicts = [backend.verify(backend.draft(4, WARM), WARM) for backend in (plain, recorded)]
        assert_alike(verdicts[1], verdicts[0])
        accepted = next((i for i in range(4) if verdicts[0].drafted[i] != verdicts[0].chosen[i]), 4)
        kept = max(0, accepted - 1 - turn % 2)
        cut += kept < accepted
        anchor = verdicts[0].chosen[kept] if turn % 4 else 17
        for backend in (plain, recorded):
            backend.commit(kept, anchor)
    assert cut > 2
    recorded._settle()
    assert_same_rows(recorded, plain)


def test_rounds_that_are_not_recorded(llama: Path) -> None:
    """Penalties, and back: the confirmed rows change hands."""
    punished = Sampling(temperature=0.8, seed=7, repetition=1.3)
    plain, recorded = opened(llama), opened(llama, capture=Again())
    texts = [prompt(40), prompt(40)]
    for backend, tokens in zip((plain, recorded), texts, strict=True):
        prefilled(backend, tokens)
    for chain, sampling in [(3, WARM), (2, punished), (0, WARM), (0, punished), (4, WARM), (3, punished), (6, GREEDY)]:
        wanted, got = (
            play(backend, tokens, chain, sampling)[0] for backend, tokens in zip((plain, recorded), texts, strict=True)
        )
        assert recorded._rounds.live == (not sampling.penalises)
        assert_alike(got, wanted)


def test_many_plain_rounds_then_a_chain(llama: Path) -> None:
    """More confirmed rows than wait on the device: the draft takes them in between."""
    plain, recorded = opened(llama), opened(llama, capture=Strict())
    texts = [prompt(40), prompt(40)]
    for backend, tokens in zip((plain, recorded), texts, strict=True):
        prefilled(backend, tokens)
        for _ in range(torch_rounds.ROWS + 9):
            play(backend, tokens, 0, WARM)
    assert 0 < len(recorded._rounds.ids) <= torch_rounds.ROWS
    assert_alike(play(recorded, texts[1], 5, WARM)[0], play(plain, texts[0], 5, WARM)[0])


@pytest.mark.parametrize("good", [0, 1, 3])
def test_a_recording_that_fails_leaves_plain_rounds(llama: Path, good: int) -> None:
    plain, recorded = opened(llama), opened(llama, capture=Broken(good))
    texts = [prompt(40), prompt(40)]
    for backend, tokens in zip((plain, recorded), texts, strict=True):
        prefilled(backend, tokens)
    for chain in (3, 0, 2, 3, 1):
        wanted, got = (
            play(backend, tokens, chain, WARM)[0] for backend, tokens in zip((plain, recorded), texts, strict=True)
        )
        assert_alike(got, wanted)
    assert recorded.graphs == "no more graphs" and not recorded._rounds.live


def test_a_cache_that_grows_drops_recordings(gemma: Path, few_slots: None) -> None:
    capture = Again()
    recorded, plain = opened(gemma, capture=capture), opened(gemma)
    tokens = prompt(30)
    for backend in (plain, recorded):
        prefilled(backend, tokens)
        play(backend, list(tokens), 2, GREEDY)
    before, part = len(recorded._graphs), recorded._rounds.windowed
    moves = part.moves
    for backend in (plain, recorded):  # a long chunk
        backend._chunk = 100
        prefilled(backend, longer := prompt(110, seed=3))
    assert part.moves > moves and before == 2
    assert_alike(play(recorded, list(longer), 2, GREEDY)[0], play(plain, list(longer), 2, GREEDY)[0])
    assert len(recorded._graphs) == 2 and capture.recorded == 4


def test_recordings_are_made_once_and_few_are_kept() -> None:
    capture = Again()
    graphs = Graphs(capture, limit=2)
    state = [torch.zeros(2)]

    def work() -> None:
        state[0].add_(1)

    for key in ("a", "b", "a", "c", "a", "b"):
        graphs.get(key, 0, work, state)()
    assert capture.recorded == 4 == graphs.recorded and len(graphs) == 2  # b went for c
    assert state[0].tolist() == [6.0, 6.0]  # a run before a recording leaves no trace


def test_where_there_are_no_graphs(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pick_graphs(torch.device("cpu")).reason == "only on CUDA"
    backend = opened(llama)
    assert backend.graphs == "only on CUDA" and backend._rounds is None
    monkeypatch.setenv("EAGLE3CHAT_GRAPHS", "off")
    assert pick_graphs(torch.device("cuda")).reason == "EAGLE3CHAT_GRAPHS=off"


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.sum().item(),
        lambda x: x.tolist(),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x if x.sum() > 0 else -x,
        lambda x: x + torch.tensor([1.0, 2.0, 3.0]),
        lambda x: torch.masked_select(x, x > 0),
        lambda x: x.repeat_interleave(x.long()),
    ],
    ids=["item", "tolist", "mask", "nonzero", "branch", "host", "select", "repeats"],
)
def test_the_strict_stand_in_refuses(work: object) -> None:
    with pytest.raises(Refused):
        Strict().record(lambda: work(torch.tensor([1.0, 2.0, 0.0])))


def test_a_recorded_round_reads_the_device_once(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded, tokens = opened(llama, capture=Again()), prompt(40)
    prefilled(recorded, tokens)
    for chain in (3, 0, 5):
        play(recorded, tokens, chain, WARM)
    reads: list[str] = []
    for name in ("tolist", "item", "__bool__", "__int__", "__float__", "__index__", "numpy", "cpu", "nonzero"):
        original = getattr(torch.Tensor, name)

        def counted(self, *args, _name=name, _original=original, **options):
            reads.append(_name)
            return _original(self, *args, **options)

        monkeypatch.setattr(torch.Tensor, name, counted)
    for chain in (3, 0, 5, 3):
        reads.clear()
        play(recorded, tokens, chain, WARM)
        assert reads == ["tolist"]


def test_what_opening_learns(llama: Path) -> None:
    """A recording that fails at once is a warning, and rounds go on."""
    for good, warned in ((9, ""), (0, "CUDA graphs fail here (no more graphs)")):
        backend, tokens = opened(llama, capture=Broken(good)), prompt(40)
        with torch.inference_mode():
            backend._rounds.probe()
        assert "".join(backend.warnings).startswith(warned) and bool(backend.warnings) == bool(warned)
        prefilled(backend, tokens)
        plain, texts = opened(llama), list(tokens)
        prefilled(plain, texts)
        assert_alike(play(backend, tokens, 3, WARM)[0], play(plain, texts, 3, WARM)[0])


@pytest.mark.parametrize("bits", [4, 8])
def test_a_dense_draft_beside_an_int4_target_on_a_gpu(bits: int) -> None:
    """It has few bits in the GPU's layout, and the numbers that it has on a CPU."""
    pytest.importorskip("triton")
    weight = torch.randn(24, 96, generator=torch.Generator().manual_seed(bits))
    made = few_bits(weight, torch.ones(24), bits=bits, device=torch.device("meta"))
    assert made.words.shape == (24, 96 * bits // 32) and made.bits == bits and made.words.device.type == "meta"
    codes, scales, biases = cpu_linear.four_bit(weight) if bits == 4 else cpu_linear.eight_bit(weight)
    wanted = codes.view(24, 3, 32) * scales[..., None] + biases[..., None]
    here = TritonLinear(packed_words(codes, bits), scales, biases, bits=bits, group=32)
    torch.testing.assert_close(here.dense(), wanted.view(24, 96))
    odd = few_bits(torch.randn(24, 40), None, bits=bits, device=torch.device("meta"))
    assert odd.weight.shape == (24, 40)


def test_a_failed_recording_is_a_warning_of_the_pair(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchBackend, "warnings", property(lambda self: ("slow here",)))
    pair = open_checked(PairOptions(bundle=str(llama), backend="torch", device="cpu"))
    assert pair.info.warnings[0] == "slow here"
    pair.close()
