"""The draft head on MLX: the numbers of the slow truth and of the torch head, for every flag."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
import torch
from reference.draft import DraftTruth
from safetensors.numpy import save_file

from eagle3chat.engine.config import DraftConfig, Rope
from eagle3chat.engine.errors import BackendError, BundleError
from eagle3chat.engine.layout import TARGET_IDS, draft_tensors
from eagle3chat.engine.mlx_draft import DENSE, Bits, DraftHead
from eagle3chat.engine.mlx_draft_cache import DraftCache
from eagle3chat.engine.mlx_rope import speeds
from eagle3chat.engine.mlx_weights import Checkpoint, Matrix
from eagle3chat.engine.torch_draft import DraftHead as TorchHead
from eagle3chat.engine.torch_rope import frequencies
from eagle3chat.engine.torch_target import Precision
from eagle3chat.engine.torch_weights import Checkpoint as TorchCheckpoint

Array = npt.NDArray[np.float32]
NEAR = 1e-4
V, ROWS, CAPACITY = 90, 11, 24
PLAIN = DraftConfig(
    hidden_size=32,
    intermediate_size=48,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    rms_eps=1e-5,
    rope=Rope(theta=100.0),
    draft_vocab_size=50,
    target_hidden_size=32,
    taps=(1, 2, 4),
)
YARN = Rope("yarn", 100.0, 4.0, original_max_position=32, beta_fast=4.0, beta_slow=0.5, attention_factor=1.2)
FLAGS: dict[str, DraftConfig] = {
    "plain": PLAIN,
    "own embedding": replace(PLAIN, own_embedding=True),
    "the target's head": replace(PLAIN, own_head=False, draft_vocab_size=V),
    "norm before residual": replace(PLAIN, norm_before_residual=True),
    "normed output fed back": replace(PLAIN, norm_output=True),
    "norms of the taps": replace(PLAIN, fc_norm=True),
    "norm before fc": replace(PLAIN, norm_before_fc=True),
    "q and k norms": replace(PLAIN, qk_norm=True),
    "biases": replace(PLAIN, attention_bias=True, output_bias=True, mlp_bias=True, fc_bias=True),
    "three layers": replace(PLAIN, num_layers=3, qk_norm=True, mlp_bias=True),
    "one tap as wide as a feature": replace(PLAIN, taps=(3,)),
    "four taps of another width": replace(PLAIN, taps=(0, 1, 2, 4), target_hidden_size=24, own_embedding=True),
    "heads wider than the stream": replace(PLAIN, head_dim=24),
    "one key head": replace(PLAIN, num_kv_heads=1),
    "llama3 rope": replace(PLAIN, rope=Rope("llama3", 100.0, 8.0, 1.0, 4.0, 32)),
    "linear rope": replace(PLAIN, rope=Rope("linear", 100.0, 2.0)),
    "yarn rope": replace(PLAIN, rope=YARN),
    "yarn rope, columns not rounded": replace(PLAIN, rope=replace(YARN, truncate=False, theta=500.0)),
}


@dataclass(frozen=True)
class Case:
    """A draft, what its target lends, and rows to take in."""

    config: DraftConfig
    weights: dict[str, npt.NDArray[np.generic]]
    rows: Array  # [V, Ht]
    head: Array  # [V, Ht]
    taps: Array  # [ROWS, A * Ht]
    tokens: list[int]  # [ROWS + 3]

    def file(self, directory: Path) -> Path:
        save_file(self.weights, directory / "model.safetensors")
        return directory / "model.safetensors"

    def mlx(self, directory: Path, dtype: mx.Dtype = mx.float32, bits: Bits = DENSE) -> DraftHead:
        rows, head = mx.array(self.rows).astype(dtype), mx.array(self.head).astype(dtype)
        lender = SimpleNamespace(vocab_size=V, embed_rows=lambda ids: rows[ids], head=lambda x: x @ head.T)
        return DraftHead(self.config, self.file(directory), lender, CAPACITY, dtype, bits)

    def torch(self, directory: Path) -> TorchHead:
        rows, head = torch.from_numpy(self.rows), torch.from_numpy(self.head)
        lender = SimpleNamespace(
            embed=lambda ids: rows[ids], head=lambda x: x @ head.T, config=SimpleNamespace(vocab_size=V)
        )
        precision = Precision(torch.float32, False, torch.device("cpu"))
        return TorchHead(self.config, TorchCheckpoint([self.file(directory)]), lender, CAPACITY, precision)

    def truth(self) -> DraftTruth:
        weights = {name: weight.astype(np.float64) for name, weight in self.weights.items()}
        return DraftTruth(self.config, weights, self.rows.astype(np.float64), self.head.astype(np.float64))


def case(config: DraftConfig, seed: int = 0) -> Case:
    rng = np.random.default_rng(seed)

    def normal(*shape: int, spread: float = 1.0) -> Array:
        return (rng.standard_normal(shape) * spread).astype(np.float32)

    weights: dict[str, npt.NDArray[np.generic]] = {}
    for name, shape in draft_tensors(config).items():
        if "norm" in name:
            weights[name] = 1.0 + normal(*shape, spread=0.3)
        elif name != TARGET_IDS:
            weights[name] = normal(*shape, spread=0.3 if name.endswith("bias") else 1.5 * shape[-1] ** -0.5)
    weights[TARGET_IDS] = np.sort(rng.permutation(V)[: config.draft_vocab_size]).astype(np.int64)
    if config.own_embedding:
        weights["embed_tokens.weight"] = normal(V, config.hidden_size)
    width = config.target_hidden_size
    tokens = rng.integers(0, V, ROWS + 3).tolist()
    return Case(config, weights, normal(V, width), normal(V, width), normal(ROWS, config.tap_width), tokens)


@pytest.mark.parametrize("name", FLAGS)
@torch.inference_mode()
def test_every_flag_has_the_numbers_of_the_truth_and_of_torch(name: str, tmp_path: Path) -> None:
    """Rows confirmed in two passes, then three of the head's own; each row's logits."""
    made = case(FLAGS[name])
    ours, theirs, truth = made.mlx(tmp_path), made.torch(tmp_path), made.truth()
    taps, tokens = mx.array(made.taps), mx.array(made.tokens)
    ours.confirm(tokens[:4], taps[:4])
    out = ours.confirm(tokens[4:ROWS], taps[4:])
    ids = torch.tensor(made.tokens)
    twin = theirs(ids[:ROWS], theirs.fuse(torch.from_numpy(made.taps)), 0)
    features = truth.fuse(np.split(made.taps.astype(np.float64), len(made.config.taps), -1))
    for step in range(4):
        wanted, made_features = truth.said(truth.outputs(features, made.tokens[: ROWS + step]))
        logits, feature = ours.propose(out)
        twin_logits, twin_feature = theirs.propose(twin)
        assert logits.shape == (1, made.config.draft_vocab_size) and logits.dtype == mx.float32
        assert np.abs(np.array(logits)[0] - wanted[-1]).max() < NEAR, step
        assert np.abs(np.array(logits) - twin_logits.numpy()).max() < NEAR, step
        if step < 3:
            out = ours.draft(tokens[ROWS + step : ROWS + step + 1], feature)
            twin = theirs(ids[ROWS + step : ROWS + step + 1], twin_feature, ROWS + step)
            features = np.concatenate((features, made_features[-1:]))
    assert ours.cache.rows == ROWS
    assert np.array(ours.target_ids).tolist() == made.weights[TARGET_IDS].tolist()


def test_drafted_rows_leave_no_trace(tmp_path: Path) -> None:
    made = case(FLAGS["three layers"])
    taps, tokens = mx.array(made.taps), mx.array(made.tokens)
    ours, fresh = made.mlx(tmp_path), made.mlx(tmp_path)
    ours.confirm(tokens[:6], taps[:6])
    feature = mx.ones((1, made.config.hidden_size))
    ours.draft(tokens[:1], feature)
    ours.draft(tokens[1:2], feature)
    assert ours.cache.drafted == 2 and ours.cache.rows == 6
    got = ours.confirm(tokens[6:9], taps[6:9])
    fresh.confirm(tokens[:6], taps[:6])
    assert mx.array_equal(got, fresh.confirm(tokens[6:9], taps[6:9]))
    ours.draft(tokens[:1], feature)
    ours.cache.keep(6)
    assert ours.cache.drafted == 0
    again = ours.confirm(tokens[6:9], taps[6:9])
    assert mx.array_equal(again, got)


@pytest.mark.parametrize("name", ["plain", "three layers"])
def test_bfloat16_is_close(name: str, tmp_path: Path) -> None:
    made = case(FLAGS[name])
    logits = {}
    for dtype in (mx.float32, mx.bfloat16):
        head = made.mlx(tmp_path, dtype)
        out = head.confirm(mx.array(made.tokens[:ROWS]), mx.array(made.taps).astype(dtype))
        assert out.dtype == dtype
        logits[dtype] = np.array(head.propose(out)[0])
    error = logits[mx.bfloat16] - logits[mx.float32]
    assert 0.0 < error.std() / logits[mx.float32].std() < 0.04


@pytest.mark.parametrize("bits", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("group", [32, 64])
def test_quantised_weights_say_what_their_values_say(bits: int, group: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(bits)
    file = str(tmp_path / "w.safetensors")
    tensors, dense = {}, {}
    for name, rows in (("a", 5), ("b", 8)):
        weight = mx.array(rng.standard_normal((rows, 128)).astype(np.float32))
        words, scales, biases = mx.quantize(weight, group_size=group, bits=bits)
        scales, biases = scales.astype(mx.float16), biases.astype(mx.float16)
        tensors |= {f"{name}.weight": words, f"{name}.scales": scales, f"{name}.biases": biases}
        wide = scales.astype(mx.float32), biases.astype(mx.float32)
        dense[name] = np.array(mx.dequantize(words, *wide, group_size=group, bits=bits))
    tensors |= {"a.bias": mx.ones(5), "b.bias": 2.0 * mx.ones(8)}
    mx.save_safetensors(file, tensors)
    checkpoint = Checkpoint(Path(file), mx.float32)
    x = rng.standard_normal((3, 128)).astype(np.float32)
    stacked = checkpoint.linear({"a": 5, "b": 8}, 128, biased=True)
    wanted = np.concatenate((x @ dense["a"].T + 1.0, x @ dense["b"].T + 2.0), -1)
    assert np.abs(np.array(stacked(mx.array(x))) - wanted).max() < NEAR
    rows = checkpoint.matrix("b", 8, 128).rows(mx.array([7, 0, 7]))
    assert np.abs(np.array(rows) - dense["b"][[7, 0, 7]]).max() < 1e-6


@pytest.mark.parametrize(("bits", "limit"), [(Bits(8, 8), 0.02), (Bits(8, 4), 0.25)], ids=["8", "4 and 8"])
def test_a_packed_draft_is_close(bits: Bits, limit: float, tmp_path: Path) -> None:
    """Error of the logits, of their spread: random weights, whose errors nothing averages out."""
    made = case(FLAGS["biases"])
    logits, sizes = [], []
    for packed in (DENSE, bits):
        head = made.mlx(tmp_path, bits=packed)
        out = head.confirm(mx.array(made.tokens[:ROWS]), mx.array(made.taps))
        logits.append(np.array(head.propose(out)[0]))
        sizes.append(head.nbytes - sum(array.nbytes for array in head.cache.arrays))
    assert 0.0 < (logits[1] - logits[0]).std() / logits[0].std() < limit
    assert sizes[1] < 0.45 * sizes[0]


def test_what_cannot_be_packed_stays_as_it_is() -> None:
    odd = Matrix(mx.ones((4, 40)))
    assert odd.packed(4) is odd
    small = Matrix(mx.ones((4, 64))).packed(8)
    assert small.bits == 8 and small.packed(4) is small


def test_bad_weights_are_named(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    words, scales, biases = mx.quantize(mx.zeros((4, 64)), group_size=32, bits=4)
    tensors = {"q.weight": words, "q.scales": scales, "q.biases": biases, "k.weight": mx.zeros((4, 64))}
    mx.save_safetensors(str(file), tensors)
    checkpoint = Checkpoint(file, mx.float32)
    assert isinstance(checkpoint.matrix("q", 4, 64), Matrix)
    for call, words_said in (
        (lambda: checkpoint.tensor("nowhere"), "nowhere is missing"),
        (lambda: checkpoint.matrix("k", 5, 64), r"k\.weight is \(4, 64\) and should be \(5, 64\)"),
        (lambda: checkpoint.matrix("q", 4, 96), "q is not 4 x 96 affine"),
        (lambda: checkpoint.linear({"q": 4, "k": 4}, 64), "q, k are not quantised alike"),
    ):
        with pytest.raises(BundleError, match=words_said) as caught:
            call()
        assert caught.value.fix
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(b"\xff" * 40)
    for path in (damaged, tmp_path / "none.safetensors"):
        with pytest.raises(BundleError, match="not readable"):
            Checkpoint(path, mx.float32)


@pytest.mark.parametrize("rope", [Rope(), FLAGS["llama3 rope"].rope, FLAGS["linear rope"].rope, YARN])
@pytest.mark.parametrize("head_dim", [8, 64, 128])
def test_positions_turn_as_on_torch(rope: Rope, head_dim: int) -> None:
    assert speeds(rope, head_dim) == pytest.approx(frequencies(rope, head_dim).tolist(), rel=1e-9)


@pytest.mark.parametrize("rope", [Rope("proportional", partial=0.25), Rope(partial=0.5)])
def test_unknown_rope_is_refused_by_name(rope: Rope) -> None:
    with pytest.raises(BackendError, match=f"'{rope.kind}' rope") as caught:
        speeds(rope, 64)
    assert caught.value.fix


def test_a_round_writes_into_the_buffers_in_place() -> None:
    """A chain of three steps beside 64 MB of keys and values allocates no second copy of them."""
    cache = DraftCache(1, 4, 64, 32768, mx.float32)
    mx.eval(cache.arrays)
    size = sum(array.nbytes for array in cache.arrays)
    row = mx.ones((1, 4, 1, 64))
    mx.eval(row)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    for _ in range(3):
        keys, values = cache.confirm(0, row, row)
        cache.advance(1)
        total = keys.sum() + values.sum()
        for _ in range(3):
            keys, values = cache.draft(0, row, row)
            total = total + keys.sum() + values.sum()
        mx.eval(total, cache.arrays)
        del keys, values
    assert cache.rows == 3
    assert mx.get_peak_memory() - before < size / 4
