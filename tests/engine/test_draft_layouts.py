"""Every public layout of an EAGLE-3 draft loads as the same canonical draft, and drafts the same numbers."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from draft_layouts import LAYOUTS, TARGET, VOCAB, Layout, canonical_tensors, lazy, target_head, target_rows
from reference.draft import DraftTruth
from reference.numbers import softmax
from tiny import TEMPLATE, tiny_tokenizer

from eagle3chat.cli import main
from eagle3chat.engine.bundle import open_bundle
from eagle3chat.engine.checkpoint import DraftSource, open_draft
from eagle3chat.engine.config import DraftConfig
from eagle3chat.engine.draft_embedding import TargetRows, dense_rows
from eagle3chat.engine.export import export_bundle
from eagle3chat.engine.tensor_file import write_tensors
from eagle3chat.engine.torch_draft import DraftHead
from eagle3chat.engine.torch_linear import Dense, Table
from eagle3chat.engine.torch_target import Precision
from eagle3chat.engine.torch_weights import Checkpoint

Array = npt.NDArray[np.float64]
ROWS = TargetRows(lambda ids: target_rows()[list(ids)], 0.02)
LONG, SHORT, CHAIN = 18, 3, 3  # rows of a pass that the kernels leave to torch, of one that they take, and drafted


def _open(layout: Layout, directory: Path) -> DraftSource:
    return open_draft(layout.write(directory / "draft"), TARGET, rows=ROWS)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_the_canonical_draft(tmp_path: Path, name: str) -> None:
    layout = LAYOUTS[name]
    source = _open(layout, tmp_path)
    assert source.config == layout.draft
    expected = layout.tensors()
    if name == "tied head":
        expected["lm_head.weight"] = expected["embed_tokens.weight"]
    assert {tensor.name for tensor in source.tensors} == set(expected)
    for tensor in source.tensors:
        value = expected[tensor.name]
        assert tensor.shape == value.shape
        if tensor.name == "target_ids":
            assert np.frombuffer(tensor.read(), "<i8").tolist() == value.tolist()
        else:
            assert np.array_equal(dense_rows(tensor, range(len(value))).reshape(value.shape), value), tensor.name
    assert source.remarks[0].startswith(f"draft: taps at boundaries {', '.join(map(str, layout.draft.taps))} (")
    assert len(source.remarks) == 1


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_drafts_the_canonical_numbers(tmp_path: Path, name: str) -> None:
    layout = LAYOUTS[name]
    source = _open(layout, tmp_path)
    weights = canonical_tensors(layout.draft)
    if name == "tied head":
        weights["lm_head.weight"] = weights["embed_tokens.weight"]
    taps, tokens = _inputs(layout.draft)
    wide = {name: value.astype(np.float64) for name, value in weights.items()}
    truth = DraftTruth(layout.draft, wide, target_rows().astype(np.float64), target_head().astype(np.float64))
    expected = _true_chain(truth, taps, tokens)
    found = _chain(_head(source, tmp_path), taps, tokens)
    assert [place for place, _ in found] == [place for place, _ in expected]
    for (_, mine), (_, theirs) in zip(found, expected, strict=True):
        assert np.abs(mine - theirs).max() < 1e-5
        assert theirs.max() > 1.5 / len(theirs)  # far from flat


def _inputs(draft: DraftConfig) -> tuple[npt.NDArray[np.float32], list[int]]:
    """Taps [n, A * Ht] of n positions, and the tokens after them."""
    rng = np.random.default_rng(5)
    rows = LONG + SHORT
    return rng.standard_normal((rows, draft.tap_width)).astype(np.float32), rng.integers(0, VOCAB, rows).tolist()


def _true_chain(truth: DraftTruth, taps: npt.NDArray[np.float32], tokens: list[int]) -> list[tuple[int, Array]]:
    """Places and probabilities [Vd] of a greedy chain."""
    tokens, said = list(tokens), []
    features = truth.fuse(np.split(taps.astype(np.float64), len(truth.config.taps), -1))
    for _ in range(CHAIN):
        logits, fed = truth.said(truth.outputs(features, tokens)[-1:])
        place = int(logits[0].argmax())
        said.append((place, softmax(logits[0])))
        features = np.concatenate((features, fed))
        tokens.append(truth.target_ids[place])
    return said


def _head(source: DraftSource, directory: Path, precision: Precision | None = None) -> DraftHead:
    """The draft beside a stand-in for the target: its embedding and its head."""
    write_tensors(directory / "canonical.safetensors", source.tensors)
    precision = precision or Precision(torch.float32, False, torch.device("cpu"))
    rows, head = (torch.from_numpy(part).to(precision.dtype) for part in (target_rows(), target_head()))
    target: Any = SimpleNamespace(config=TARGET, embed=Table(rows), head=Dense(head))
    return DraftHead(source.config, Checkpoint([directory / "canonical.safetensors"]), target, 64, precision)


@torch.inference_mode()
def _chain(head: DraftHead, taps: npt.NDArray[np.float32], tokens: list[int]) -> list[tuple[int, Array]]:
    """As `_true_chain`: two passes over the taps, then the head's own features, one row at a time."""
    said = []
    for part in (slice(0, LONG), slice(LONG, LONG + SHORT)):
        features = head.fuse(torch.from_numpy(taps[part]).to(head.norm.weight.dtype))
        out = head(torch.tensor(tokens[part]), features, head.cache.rows)
        head.cache.advance(len(tokens[part]))
    for step in range(CHAIN):
        logits, feature = head.propose(out)
        place = int(logits[0].argmax())
        said.append((place, logits[0].double().softmax(-1).numpy()))
        out = head(head.target_ids[place].view(1), feature, head.cache.rows + step)
    return said


@pytest.mark.parametrize(("int4", "bound"), [(True, 0.06), (False, 0.015)])
@pytest.mark.parametrize("name", ["all biases", "several layers", "EAGLE 3.1", "Qwen3"])
def test_in_bfloat16_and_beside_an_int4_target(tmp_path: Path, name: str, int4: bool, bound: float) -> None:
    """Off by rounding, and not by a bias or a norm."""
    layout = LAYOUTS[name]
    source = _open(layout, tmp_path)
    taps, tokens = _inputs(layout.draft)
    exact = _chain(_head(source, tmp_path), taps, tokens)
    rounded = _chain(_head(source, tmp_path, Precision(torch.bfloat16, int4, torch.device("cpu"))), taps, tokens)
    assert np.abs(rounded[0][1] - exact[0][1]).max() < bound


def test_flags_change_the_numbers() -> None:
    """Else the comparison above would prove nothing of them."""
    names = (
        "lmsys",
        "EAGLE 3.1",
        "RedHat gpt-oss",
        "RedHat, draft_model.",
        "all biases",
        "yarn",
        "linear",
        "SpecForge",
    )
    first = {}
    for name in names:
        draft = LAYOUTS[name].draft
        taps, tokens = _inputs(draft)
        wide = {key: value.astype(np.float64) for key, value in canonical_tensors(draft).items()}
        truth = DraftTruth(draft, wide, target_rows().astype(np.float64), target_head().astype(np.float64))
        first[name] = _true_chain(truth, taps, tokens)[0][1]
    for name in names[1:]:
        assert np.abs(first[name] - first["lmsys"]).max() > 1e-3, name


# Export


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target as a Hugging Face directory, in bfloat16."""
    path = tmp_path_factory.mktemp("target") / "Tiny"
    path.mkdir()
    rng = np.random.default_rng(1)
    tensors = {"model.embed_tokens.weight": target_rows(), "lm_head.weight": target_head()}
    tensors["model.norm.weight"] = np.ones(32, np.float32)
    shapes = {
        "input_layernorm": (32,),
        "post_attention_layernorm": (32,),
        "self_attn.q_proj": (32, 32),
        "self_attn.k_proj": (16, 32),
        "self_attn.v_proj": (16, 32),
        "self_attn.o_proj": (32, 32),
        "mlp.gate_proj": (64, 32),
        "mlp.up_proj": (64, 32),
        "mlp.down_proj": (32, 64),
    }
    for index in range(TARGET.num_layers):
        for name, shape in shapes.items():
            tensors[f"model.layers.{index}.{name}.weight"] = rng.standard_normal(shape).astype(np.float32)
    write_tensors(path / "model.safetensors", [lazy(name, value, "BF16") for name, value in tensors.items()])
    values = {
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 12,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
    }
    (path / "config.json").write_text(json.dumps(values))
    (path / "tokenizer.json").write_text(json.dumps(tiny_tokenizer(VOCAB)))
    (path / "chat_template.jinja").write_text(TEMPLATE)
    return path


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_goes_into_a_bundle(tmp_path: Path, target: Path, name: str) -> None:
    layout = LAYOUTS[name]
    remarks: list[str] = []
    draft = layout.write(tmp_path / "draft")
    bundle = open_bundle(export_bundle(target, draft, tmp_path / "out", remark=remarks.append))
    assert bundle.manifest.target == TARGET
    assert bundle.manifest.draft == layout.draft
    assert len(remarks) == 1
    kept = {file.name for file in draft.iterdir()}
    assert bundle.manifest.sources[1].size == sum((draft / file).stat().st_size for file in kept if "index" not in file)


def test_the_command_takes_other_taps(tmp_path: Path, target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draft, out = LAYOUTS["lmsys"].write(tmp_path / "draft"), tmp_path / "out"
    words = ["export", "--target", str(target), "--draft", str(draft), "--output-dir", str(out), "--taps", "1,5,8"]
    assert main(words) == 0
    bundle = open_bundle(out)
    assert bundle.manifest.draft is not None and bundle.manifest.draft.taps == (1, 5, 8)
    assert "draft: taps at boundaries 1, 5, 8 (as given)" in capsys.readouterr().err
