"""`eagle3chat info`: counts from headers, held against the tensors themselves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tiny import tiny_bundle

from eagle3chat.cli import main
from eagle3chat.engine.anatomy import dissect
from eagle3chat.engine.bundle import open_bundle


@pytest.fixture(autouse=True)
def no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def bytes_in(path: Path) -> int:
    return sum(np.asarray(tensor).nbytes for tensor in load_file(path / "model.safetensors").values())


@pytest.mark.parametrize("quantized", [False, True])
def test_counts_are_those_of_the_tensors(quantized: bool, tmp_path: Path) -> None:
    path = tiny_bundle(tmp_path, quantized=quantized)
    bundle = open_bundle(path)
    anatomy = dissect(bundle)
    assert anatomy.weight_bytes("target") == bytes_in(path / "target")
    assert anatomy.weight_bytes("draft") == bytes_in(path / "draft")
    target = bundle.manifest.target
    width, inner, head = target.hidden_size, target.intermediate_size, target.head_dim
    layer = 2 * width * head * (target.num_heads + target.num_kv_heads) + 3 * width * inner + 2 * width
    assert anatomy.parameters("target") == 2 * target.vocab_size * width + target.num_layers * layer + width
    found = {(part.name, part.precision) for part in anatomy.parts if part.model == "target"}
    assert (("attention", "4-bit") in found) is quantized
    assert (("mlp", "F32") in found) is not quantized
    if quantized:
        (attention,) = (part for part in anatomy.parts if (part.model, part.name) == ("target", "attention"))
        assert attention.bits == 5.0  # 4, and two 16-bit numbers for 32 of them


def test_the_cache_grows_with_positions_and_width(tmp_path: Path) -> None:
    anatomy = dissect(open_bundle(tiny_bundle(tmp_path)))
    assert anatomy.cache_bytes(100, "float32") == (4 * 2 * 2 * 16 * 100 * 4, 2 * 2 * 16 * 100 * 4)
    assert anatomy.cache_bytes(100, "bfloat16")[0] * 2 == anatomy.cache_bytes(100, "float32")[0]


def test_the_table_and_the_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tiny_bundle(tmp_path, quantized=True)
    assert main(["info", str(path), "--context", "100"]) == 0
    table = capsys.readouterr().out
    assert "taps      after layers 1, 2, 3 of 4" in table
    assert "at 100 positions" in table
    assert main(["info", str(path), "--context", "100", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["cache_bytes"]["float32"] == {"target": 102400, "draft": 25600}
    assert document["manifest"]["draft"]["taps"] == [1, 2, 3]


def test_without_a_draft(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(tiny_bundle(tmp_path, draft=False))]) == 0
    assert "draft     none" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [["nowhere"], ["--context", "0"], ["--context", "9999999"]])
def test_what_is_refused(argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [str(tmp_path / argv[0])] if argv[0] == "nowhere" else [str(tiny_bundle(tmp_path)), *argv]
    assert main(["info", *given]) == 2
    assert capsys.readouterr().err.count("\n") == 1
