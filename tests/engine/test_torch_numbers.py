"""Weights as they are stored, the dtypes the backend runs in, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from reference import Reference
from tiny import tiny_bundle

from eagle3chat.engine.bundle import open_bundle
from eagle3chat.engine.config import Rope
from eagle3chat.engine.errors import BackendError, BundleError
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.torch_backend import TorchBackend
from eagle3chat.engine.torch_linear import (
    Blocked,
    CodeTable,
    Dense,
    Int4,
    Int8,
    PackedTable,
    Table,
    embedding,
    few_bits,
    linear,
)
from eagle3chat.engine.torch_rope import frequencies
from eagle3chat.engine.torch_weights import Affine, Checkpoint
from eagle3chat.kernels import cpu, cpu_linear
from eagle3chat.kernels.cpu_linear import CpuLinear

CPU = torch.device("cpu")
PROMPT = [(7 * i) % 300 + 3 for i in range(50)]


@pytest.fixture
def torch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the compiled kernels were not built."""
    monkeypatch.setattr(cpu_linear, "usable", lambda: False)


def affine(rows: int, columns: int, bits: int, group: int, seed: int = 0) -> tuple[Affine, np.ndarray]:
    """A random affine weight, and its codes [rows, columns], packed here with Python integers."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 2**bits, (rows, columns))
    words = []
    for row in codes.tolist():
        stream = sum(code << (bits * i) for i, code in enumerate(row))
        words.append([(stream >> (32 * i)) & 0xFFFFFFFF for i in range(columns * bits // 32)])
    scales = torch.from_numpy(rng.standard_normal((rows, columns // group)).astype(np.float16))
    biases = torch.from_numpy(rng.standard_normal((rows, columns // group)).astype(np.float16))
    return Affine(torch.from_numpy(np.array(words, np.uint32)), scales, biases, bits, group), codes


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("group", [32, 64])
def test_affine_weights_are_unpacked_exactly(bits: int, group: int) -> None:
    weight, codes = affine(5, 128, bits, group)
    assert weight.codes().tolist() == codes.tolist()
    scales, biases = (np.repeat(t.double().numpy(), group, 1) for t in (weight.scales, weight.biases))
    assert np.abs(weight.dense().double().numpy() - (scales * codes + biases)).max() < 1e-5


def test_the_first_column_is_the_low_nibble() -> None:
    word = torch.tensor([[0x76543210, 0xFEDCBA98, 0x76543210, 0xFEDCBA98]], dtype=torch.int64).to(torch.uint32)
    weight = Affine(word, torch.tensor([[0.5]]), torch.tensor([[-2.0]]), 4, 32)
    assert weight.dense()[0, :16].tolist() == [0.5 * i - 2.0 for i in range(16)]


@pytest.mark.usefixtures("torch_alone")
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("rows", [1, 3, 4, 5])
def test_int4_takes_the_values_as_they_are(group: int, rows: int) -> None:
    parts = [affine(16 * n, 256, 4, group, seed=n)[0] for n in (1, 2, 3)]
    made = linear(parts, int4=True, dtype=torch.bfloat16, device=CPU)
    assert isinstance(made, Int4)
    x = torch.randn(rows, 256, generator=torch.Generator().manual_seed(1)).bfloat16()
    scale = torch.cat([part.scales for part in parts]).bfloat16().double()
    zero = torch.cat([part.biases.float() + 8.0 * part.scales.float() for part in parts]).bfloat16().double()
    codes = torch.cat([part.codes() for part in parts]).double().view(96, -1, group)
    weight = ((codes - 8.0) * scale[..., None] + zero[..., None]).view(96, -1)
    wanted = x.double() @ weight.T
    # Nothing is lost but the rounding of the result to bfloat16 (2**-9), and a float32 sum's.
    torch.testing.assert_close(made(x).double(), wanted, rtol=2**-8, atol=1e-3)


@pytest.mark.usefixtures("torch_alone")
def test_a_layer_that_is_not_4_bit_stays_dense() -> None:
    four, eight = affine(32, 64, 4, 32)[0], affine(32, 64, 8, 32)[0]
    odd = affine(8, 64, 4, 32)[0]
    for parts in ([eight], [four, eight], [odd], [torch.ones(32, 64)]):
        made = linear(parts, int4=True, dtype=torch.bfloat16, device=CPU)
        assert isinstance(made, Blocked if Blocked.usable() else Dense)
        x = torch.randn(3, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
        weight = torch.cat([p.dense() if isinstance(p, Affine) else p for p in parts]).bfloat16()
        torch.testing.assert_close(made(x).float(), x.float() @ weight.float().T, rtol=2**-7, atol=0.05)


@pytest.mark.skipif(not cpu_linear.usable(), reason="the kernels are not built here")
@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_weights_go_to_the_kernels_where_these_are(bits: int) -> None:
    parts = [affine(n, 256, bits, 64, seed=n)[0] for n in (9, 16)]
    bias, x = torch.randn(25), torch.randn(5, 256, generator=torch.Generator().manual_seed(1)).bfloat16()
    made = linear(parts, int4=True, dtype=torch.bfloat16, device=CPU, bias=bias, wide=True)
    assert isinstance(made, CpuLinear)
    wanted = x.float() @ torch.cat([part.dense() for part in parts]).T + bias
    assert ((made(x) - wanted).std() / wanted.std()).item() < 0.012  # the activations have 8 bits
    for odd in ([parts[0], affine(9, 256, 12 - bits, 64)[0]], [parts[0], torch.ones(7, 256)]):
        assert isinstance(linear(odd, int4=True, dtype=torch.bfloat16, device=CPU), Blocked | Dense)
    assert isinstance(linear(parts, int4=False, dtype=torch.bfloat16, device=CPU), Blocked | Dense)
    assert isinstance(few_bits(torch.ones(7, 96), None), CpuLinear)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_int8_rows_are_near(rows: int) -> None:
    weight = torch.randn(96, 64, generator=torch.Generator().manual_seed(3))
    weight[5] = 0.0
    x = torch.randn(rows, 64, generator=torch.Generator().manual_seed(4)).bfloat16()
    wanted = x.float() @ weight.T
    assert ((Int8(weight)(x).float() - wanted).std() / wanted.std()).item() < 0.012


def test_8_bit_embedding_rows_are_exact() -> None:
    weight, codes = affine(40, 64, 8, 32)
    weight = Affine(weight.words, weight.scales, -128.0 * weight.scales, 8, 32)
    ids = torch.tensor([0, 39, 5])
    wanted = (codes[ids] - 128.0) * np.repeat(weight.scales[ids].double().numpy(), 32, 1)
    assert CodeTable(weight, torch.float32, CPU)(ids).double().numpy().tolist() == wanted.tolist()


@pytest.mark.parametrize("dtype", ["bfloat16", "int4"])
def test_low_precision_is_close_to_float32(dtype: str, tmp_path: Path) -> None:
    """Of the spread of the logits (bfloat16 carries 8 bits; the stream is rounded some ten times)."""
    path = tiny_bundle(tmp_path, quantized=True, hidden=128, head_dim=32, agree=0.5)
    wanted, _ = Reference(path).target(PROMPT)
    backend = TorchBackend(open_bundle(path), device="cpu", dtype=dtype)
    assert isinstance(backend._target.embed, CodeTable)
    assert spread_of_error(backend, wanted) < 0.04


@pytest.mark.skipif(not cpu_linear.usable(), reason="the kernels are not built here")
def test_torch_starts_no_threads_where_the_kernels_work(tmp_path: Path) -> None:
    """Not in rounds, and in prompts neither when all layers are the kernels'."""
    bundle, before = open_bundle(tiny_bundle(tmp_path, quantized=True)), torch.get_num_threads()
    try:
        for dtype, bound, in_prompts, in_rounds in (
            ("int4", True, 1, 1),
            ("int4", False, 3, 1),
            ("bfloat16", False, 3, 3),
        ):
            backend = TorchBackend(bundle, device="cpu", dtype=dtype, threads=3)
            if not bound:
                backend._target.program = None
            list(backend.prefill(PROMPT, 0))
            assert torch.get_num_threads() == in_prompts
            backend.draft(1, Sampling())
            assert torch.get_num_threads() == in_rounds
        assert cpu.describe().endswith(" 3 threads")
    finally:
        torch.set_num_threads(before)
        cpu.set_threads(before)


@pytest.mark.usefixtures("torch_alone")
def test_int4_without_the_kernels_is_close_to_float32(tmp_path: Path) -> None:
    path = tiny_bundle(tmp_path, quantized=True, hidden=128, head_dim=32, agree=0.5)
    backend = TorchBackend(open_bundle(path), device="cpu", dtype="int4")
    assert isinstance(backend._target.layers[0].mlp.down, Int4)
    assert isinstance(backend._head.mlp.down, Int8)
    assert not isinstance(backend._head.head, Int8)
    assert spread_of_error(backend, Reference(path).target(PROMPT)[0]) < 0.04
    assert_draft_is_close(backend, path, 0.08)


@torch.inference_mode()
def spread_of_error(backend: TorchBackend, wanted: np.ndarray) -> float:
    got = backend._target.logits(backend._target(torch.tensor(PROMPT))[0])
    return float((got.double() - torch.from_numpy(wanted)).std() / wanted.std())


def assert_draft_is_close(backend: TorchBackend, path: Path, limit: float) -> None:
    list(backend.prefill(PROMPT, 0))
    verdict = backend.verify(backend.draft(1, Sampling()), Sampling())
    truth = Reference(path).round(PROMPT, 1, Sampling())
    assert verdict.drafted == truth.drafted
    assert verdict.draft_p == pytest.approx(truth.draft_p, abs=limit)


@pytest.mark.parametrize(("dtype", "limit"), [("bfloat16", 0.05), ("int4", 0.08)])
def test_low_precision_draft_is_close_to_float32(dtype: str, limit: float, tmp_path: Path) -> None:
    """Beside an int4 target, which is itself a little off, the draft's layer has 8 bits."""
    path = tiny_bundle(tmp_path, quantized=True, agree=0.9)
    assert_draft_is_close(TorchBackend(open_bundle(path), device="cpu", dtype=dtype), path, limit)


def test_auto_dtype(tmp_path: Path) -> None:
    for quantized, wanted in ((True, "int4"), (False, "float32")):
        directory = tmp_path / wanted
        directory.mkdir()
        backend = TorchBackend(open_bundle(tiny_bundle(directory, quantized=quantized)), device="cpu", dtype="auto")
        assert (backend.device, backend.dtype) == ("cpu", wanted)
        assert isinstance(backend._target.embed, CodeTable if quantized else Table)


def test_progress_ends_at_one(tmp_path: Path) -> None:
    said: list[tuple[str, float | None]] = []
    TorchBackend(open_bundle(tiny_bundle(tmp_path)), device="cpu", dtype="float32", progress=lambda *s: said.append(s))
    shares = [share for _, share in said]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert {stage for stage, _ in said} == {"loading the target", "loading the draft"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": "tpu"}, "no device 'tpu'"),
        ({"device": "cuda:99"}, "CUDA devices"),
        ({"dtype": "int4"}, "no 4-bit weights"),
        ({"dtype": "float8"}, "no dtype 'float8'"),
    ],
)
def test_refusals_name_what_is_wrong(options: dict[str, str], words: str, tmp_path: Path) -> None:
    bundle = open_bundle(tiny_bundle(tmp_path))
    with pytest.raises(BackendError, match=words) as caught:
        TorchBackend(bundle, **({"device": "cpu", "dtype": "float32"} | options))
    assert caught.value.fix


def test_unknown_rope_is_refused_by_name() -> None:
    with pytest.raises(BackendError, match="'spiral' rope"):
        frequencies(Rope("spiral"), 64)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    checkpoint = Checkpoint([tiny_bundle(tmp_path) / "target" / "model.safetensors"])
    with pytest.raises(BundleError, match=r"model\.nowhere"):
        checkpoint.tensor("model.nowhere")
    with pytest.raises(BundleError, match="should be"):
        checkpoint.tensor("model.norm.weight", 3)
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(b"\xff" * 40)
    with pytest.raises(BundleError, match="not readable"):
        Checkpoint([damaged])


@pytest.mark.parametrize("bits", [3, 4, 6])
def test_embedding_rows_of_few_bits_stay_packed_and_are_exact(bits: int) -> None:
    weight, _ = affine(40, 64, bits, 32)
    ids = torch.tensor([0, 39, 5])
    for dtype in (torch.float32, torch.bfloat16):
        table = embedding(weight, None, dtype=dtype, device=CPU)
        assert isinstance(table, PackedTable)
        assert torch.equal(table(ids), weight.dense()[ids].to(dtype))
    assert table.nbytes == 40 * 64 * bits // 8 + 2 * 40 * 2 * 2


def test_a_table_gives_the_dtype_that_is_asked_for() -> None:
    weight = torch.randn(9, 4, generator=torch.Generator().manual_seed(1)).bfloat16()
    assert torch.equal(Table(weight, torch.float32)(torch.tensor([8])), weight[8:].float())
