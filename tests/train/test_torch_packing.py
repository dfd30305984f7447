"""A draft's directory in 4 bits: what an engine makes of the dense one, and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny import tiny_bundle

from eagle3chat.cli import main
from eagle3chat.engine.bundle import Bundle, open_bundle
from eagle3chat.engine.checkpoint import open_draft
from eagle3chat.engine.config import Quantization
from eagle3chat.engine.errors import CheckpointError
from eagle3chat.engine.export import export_bundle
from eagle3chat.engine.layout import draft_tensors
from eagle3chat.engine.pair import open_pair
from eagle3chat.engine.requests import Controls, Message, PairOptions, Say
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.speculate import speculate
from eagle3chat.engine.tensor_file import read_header
from eagle3chat.engine.torch_weights import Checkpoint
from eagle3chat.train.job import new_config
from eagle3chat.train.torch_packing import SAID
from eagle3chat.train.torch_rounding import NAMES, rounded
from eagle3chat.train.torch_weights_file import from_source, from_target, read_target_rows, save

IDS = torch.arange(0, 320, 5)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    made = tiny_bundle(tmp_path_factory.mktemp("tiny"), draft=False, quantized=True, layers=9, tied=True)
    return open_bundle(made)


@pytest.fixture(scope="module")
def dense(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("drafts") / "dense"
    rows = read_target_rows(bundle.manifest.target, Checkpoint(bundle.target_files), torch.float32)
    learned = from_target(new_config(bundle.manifest, len(IDS), None), rows, IDS, 0)
    save(learned, path, bundle.manifest.target, {"target": "tiny"})
    (path / "README.md").write_text("# A draft\n")
    return path


@pytest.fixture(scope="module")
def packed(dense: Path) -> Path:
    path = dense.with_name("packed")
    assert main(["train", "pack", str(dense), "--output-dir", str(path)]) == 0
    return path


def test_head_and_mlp_are_what_four_bits_keep(bundle: Bundle, dense: Path, packed: Path) -> None:
    target = bundle.manifest.target
    source = open_draft(packed, target)
    assert source.quantization == Quantization(32, 4)
    before, after = from_source(open_draft(dense, target)), from_source(source)
    assert set(before.weights) == set(after.weights) == set(draft_tensors(before.config)) - {"target_ids"}
    assert torch.equal(before.target_ids, after.target_ids)
    for name, weight in before.weights.items():
        expected = rounded(weight) if name in NAMES else weight
        assert torch.equal(after.weights[name], expected), name
    assert read_header(packed / "model.safetensors").metadata["target"] == "tiny"
    assert (packed / "README.md").read_text() == "# A draft\n" + SAID
    sizes = [(path / "model.safetensors").stat().st_size for path in (dense, packed)]
    assert sizes[1] < 0.75 * sizes[0]


def said(bundle: Path, dtype: str) -> list[tuple[object, ...]]:
    """Of a reply's rounds: what was drafted, its probabilities, what was emitted."""
    pair = open_pair(PairOptions(bundle=str(bundle), dtype=dtype))
    ids = pair.prompt_ids(Say((Message("user", "tea"),), Controls()))
    for _ in pair.backend.prefill(ids, 0):
        pass
    controls = Controls(3, Sampling())
    steps = list(speculate(pair.backend, len(ids), lambda: controls, lambda offered: (len(offered), False), 40))
    pair.close()
    return [(s.verdict.drafted, s.verdict.draft_p, s.tokens) for s in steps if s.verdict is not None]


@pytest.mark.parametrize("dtype", ["int4", "bfloat16", "float32"])
def test_an_engine_drafts_as_with_the_dense_one(
    bundle: Bundle, dense: Path, packed: Path, tmp_path: Path, dtype: str
) -> None:
    """In int4 the probabilities are the same numbers; else the packed draft has the rounded weights."""
    if dtype != "int4":
        target, rounded_dense = bundle.manifest.target, tmp_path / "rounded"
        save(from_source(open_draft(packed, target)), rounded_dense, target, {})
        dense = rounded_dense
    found = [said(made(bundle, draft, tmp_path / draft.name), dtype) for draft in (dense, packed)]
    assert len(found[0]) > 5
    if dtype == "float32":  # bfloat16 rounds what is written dense
        for (drafted, p, tokens), (packed_drafted, packed_p, packed_tokens) in zip(*found, strict=True):
            assert (drafted, tokens) == (packed_drafted, packed_tokens)
            assert p == pytest.approx(packed_p, abs=2e-2)
    else:
        assert found[0] == found[1]


def made(bundle: Bundle, draft: Path, output: Path) -> Path:
    """A bundle of the tiny target and a draft."""
    target = output.with_name("target-files")
    if not target.exists():
        target.mkdir()
        for file in ("tokenizer.json", "tokenizer_config.json"):
            (target / file).write_bytes((bundle.path / file).read_bytes())
        for file in (bundle.path / "target").iterdir():
            (target / file.name).write_bytes(file.read_bytes())
        (target / "chat_template.jinja").write_bytes((bundle.path / "chat_template.jinja").read_bytes())
    return export_bundle(target, draft, output.with_name(f"bundle-{output.name}"))


def test_there_and_back(dense: Path, packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    back = tmp_path / "back"
    assert main(["train", "pack", str(packed), "--output-dir", str(back), "--dense"]) == 0
    assert capsys.readouterr().out.strip() == str(back)
    given, again = (read_header(path / "model.safetensors").tensors for path in (dense, back))
    assert {name: (i.dtype, i.shape) for name, i in again.items()} == {n: (i.dtype, i.shape) for n, i in given.items()}
    assert (back / "config.json").read_text() == (dense / "config.json").read_text()
    assert (back / "README.md").read_text() == "# A draft\n"
    third = tmp_path / "third"
    assert main(["train", "pack", str(back), "--output-dir", str(third)]) == 0
    head = [read_header(path / "model.safetensors").tensors["lm_head.weight"].read() for path in (packed, third)]
    assert sum(a != b for a, b in zip(*head, strict=True)) < 0.02 * len(head[0])


@pytest.mark.parametrize(
    ("packed_again", "flags", "words"),
    [(True, [], "is packed already"), (False, ["--dense"], "is dense already"), (False, [], "is there already")],
)
def test_what_cannot_be_done(
    dense: Path,
    packed: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    packed_again: bool,
    flags: list[str],
    words: str,
) -> None:
    output = tmp_path / "there"
    output.mkdir()
    (output / "mine").write_text("kept")
    assert main(["train", "pack", str(packed if packed_again else dense), "--output-dir", str(output), *flags]) == 2
    assert words in capsys.readouterr().err
    assert [file.name for file in output.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"quantization": None}, ".scales is quantised, but no quantisation is declared"),
        ({"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}}, "'mxfp4' is not known for drafts"),
        ({"quantization": {"group_size": 64, "bits": 4}}, r"has the shape"),
        ({"quantization": {"bits": 4}}, "group_size"),
        ({"quantization": 4}, "not an object"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
    ],
    ids=["undeclared", "other mode", "other group", "no group", "no object", "other config"],
)
def test_another_form_is_refused(
    bundle: Bundle, packed: Path, tmp_path: Path, change: dict[str, object], words: str
) -> None:
    (tmp_path / "model.safetensors").write_bytes((packed / "model.safetensors").read_bytes())
    config = {**json.loads((packed / "config.json").read_text()), **change}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=words):
        open_draft(tmp_path, bundle.manifest.target)


def test_forms_by_module_have_the_drafts_own_names(bundle: Bundle, packed: Path, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes((packed / "model.safetensors").read_bytes())
    config = json.loads((packed / "config.json").read_text())
    own = {"group_size": 32, "bits": 4}
    names = ("lm_head", *(f"midlayer.mlp.{name}_proj" for name in ("gate", "up", "down")))
    config["quantization"] = {"group_size": 64, "bits": 8, **dict.fromkeys(names, own)}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert open_draft(tmp_path, bundle.manifest.target).quantization == Quantization(32, 4)
