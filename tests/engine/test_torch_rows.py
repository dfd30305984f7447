"""Passes of few rows through the compiled kernels: a row's bits whatever stands beside it, and torch's numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny import tiny_bundle
from torch import Tensor

from eagle3chat.engine import torch_layers
from eagle3chat.engine.bundle import open_bundle
from eagle3chat.engine.torch_backend import TorchBackend
from eagle3chat.engine.torch_target import Target
from eagle3chat.kernels import cpu

pytestmark = pytest.mark.skipif(cpu.library() is None, reason="the kernels are not built here")
IDS = torch.tensor([(11 * i * i + 7 * i) % 300 + 3 for i in range(300)])
STARTS = (1, 5, 37, 63, 100, 126, 128, 200, 255, 283)


def backend(directory: Path, dtype: str, **flags: object) -> TorchBackend:
    path = tiny_bundle(directory, quantized=True, hidden=128, intermediate=1536, max_seq_len=320, agree=0.3, **flags)
    return TorchBackend(open_bundle(path), device="cpu", dtype=dtype)


def passed(target: Target, start: int, rows: int) -> tuple[Tensor, Tensor]:
    """Logits and taps of rows behind `start` cached ones, which then count."""
    normed, taps = target(IDS[start : start + rows])
    target.cache.advance(rows)
    return target.logits(normed), taps


@torch.inference_mode()
@pytest.mark.parametrize("flags", [{}, {"qk_norm": True, "head_dim": 32}, {"attention_bias": True, "kv_heads": 4}])
@pytest.mark.parametrize("dtype", ["int4", "bfloat16"])
def test_rows_together_are_rows_alone(dtype: str, flags: dict[str, object], tmp_path: Path) -> None:
    target = backend(tmp_path, dtype, **flags)._target
    for start in STARTS:
        target.cache.keep(0)
        for done in range(0, start, 64):
            passed(target, done, min(64, start - done))
        alone = [passed(target, start + i, 1) for i in range(8)]
        kept = target.cache.data[:, :, start : start + 8].clone()
        for rows in (2, 3, 4, 5, 8):
            target.cache.keep(start)
            logits, taps = passed(target, start, rows)
            assert torch.equal(logits, torch.cat([row[0] for row in alone[:rows]])), (start, rows)
            assert torch.equal(taps, torch.cat([row[1] for row in alone[:rows]])), (start, rows)
            assert torch.equal(target.cache.data[:, :, start : start + rows], kept[:, :, :rows])


@torch.inference_mode()
@pytest.mark.parametrize("taps", [(0, 2, 4), (1, 2, 3)])
def test_the_program_is_the_layers_one_by_one(taps: tuple[int, ...], tmp_path: Path) -> None:
    target = backend(tmp_path, "int4", taps=taps, attention_bias=True)._target
    program = target.program
    assert program is not None
    found = []
    for target.program in (program, None):
        target.cache.keep(0)
        found.append([passed(target, start, rows) for start, rows in ((0, 7), (7, 1), (8, 16), (24, 3))])
    for (logits, tapped), (wanted, wanted_tapped) in zip(*found, strict=True):
        assert torch.equal(logits, wanted) and torch.equal(tapped, wanted_tapped)


@torch.inference_mode()
@pytest.mark.parametrize("flags", [{}, {"qk_norm": True}, {"attention_bias": True}])
@pytest.mark.parametrize(("dtype", "limit"), [("float32", 1e-5), ("bfloat16", 0.04)])
def test_numbers_are_those_of_torch(
    dtype: str, limit: float, flags: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain").mkdir()
    fast = backend(tmp_path, dtype, **flags)._target
    monkeypatch.setattr(torch_layers, "has_kernels", lambda device, dtype: False)
    plain = backend(tmp_path / "plain", dtype, **flags)._target
    assert fast.layers[0].attention.kernel is not None and plain.layers[0].attention.kernel is None
    for start in (0, 5, 130):
        for target in (fast, plain):
            target.cache.keep(0)
            for done in range(0, start, 64):
                passed(target, done, min(64, start - done))
        for rows in (4, 60):  # each has its kernel
            for got, wanted in zip(passed(fast, start, rows), passed(plain, start, rows), strict=True):
                assert (got - wanted).float().std() < limit * wanted.float().std()
            start += rows


@torch.inference_mode()
@pytest.mark.parametrize("dtype", ["int4", "float32"])
def test_chunks_of_a_prompt_do_not_show(dtype: str, tmp_path: Path) -> None:
    """However a prompt is cut into passes of many rows, its cache has the same bits (float32: the same numbers)."""
    target = backend(tmp_path, dtype)._target
    found = []
    for chunks in ((150,), (64, 64, 22), (17, 100, 33)):
        target.cache.keep(0)
        for rows in chunks:
            normed, _ = passed(target, target.cache.rows, rows)
        found.append((target.cache.data[:, :, :150].clone(), normed[-17:]))
    for other in found[1:]:
        for got, wanted in zip(other, found[0], strict=True):
            if dtype == "int4":
                assert torch.equal(got, wanted)
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
