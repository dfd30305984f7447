"""open_bundle: a good bundle opens, and each bad one gives its own sentence."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny import tiny_bundle

from eagle3chat.engine.bundle import open_bundle
from eagle3chat.engine.config import Manifest
from eagle3chat.engine.errors import BundleError
from eagle3chat.engine.manifest import read_manifest, write_manifest

Breakage = Callable[[Path], object]


def _edit(change: Callable[[dict[str, Any]], object]) -> Breakage:
    def breakage(path: Path) -> None:
        values = json.loads((path / "bundle.json").read_text())
        change(values)
        (path / "bundle.json").write_text(json.dumps(values))

    return breakage


def _set(dotted: str, value: object) -> Breakage:
    def change(values: dict[str, Any]) -> None:
        *outer, key = dotted.split(".")
        for name in outer:
            values = values[name]
        values[key] = value

    return _edit(change)


def _tensors(file: str, change: Callable[[dict[str, Any]], object]) -> Breakage:
    def breakage(path: Path) -> None:
        tensors = load_file(path / file)
        change(tensors)
        save_file(tensors, path / file)

    return breakage


def _target(change: Callable[[dict[str, Any]], object]) -> Breakage:
    return _tensors("target/model.safetensors", change)


def _draft(change: Callable[[dict[str, Any]], object]) -> Breakage:
    return _tensors("draft/model.safetensors", change)


def _truncate(file: str, by: int = 100) -> Breakage:
    def breakage(path: Path) -> None:
        data = (path / file).read_bytes()
        (path / file).write_bytes(data[:-by])

    return breakage


def _tokenizer(path: Path) -> None:
    file = path / "tokenizer.json"
    values = json.loads(file.read_text())
    values["added_tokens"].append({"id": 320, "content": "<|more|>", "special": True})
    file.write_text(json.dumps(values))
    manifest = read_manifest(path)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    write_manifest(path, dataclasses.replace(manifest, tokenizer_sha256=digest))


def _index(name: object) -> Breakage:
    def breakage(path: Path) -> None:
        file = path / "target" / "model.safetensors.index.json"
        file.write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))

    return breakage


def _replaced(name: str, value: Any) -> Callable[[dict[str, Any]], object]:
    return lambda tensors: tensors.update({name: value(tensors[name])})


Q = "model.layers.0.self_attn.q_proj.weight"
BAD: list[tuple[str, Breakage, str]] = [
    ("no manifest", lambda p: (p / "bundle.json").unlink(), r"bundle\.json: cannot be read \(No such file"),
    ("not json", lambda p: (p / "bundle.json").write_text("{"), r"is not JSON"),
    ("list", lambda p: (p / "bundle.json").write_text("[]"), r"is not a JSON object"),
    ("format", _set("format_version", 99), r"has the format version 99; this program reads 1"),
    ("no format", _edit(lambda v: v.pop("format_version")), r"format version None"),
    ("missing key", _edit(lambda v: v.pop("stop_ids")), r"stop_ids is missing"),
    ("wrong type", _set("target.num_layers", "4"), r"target\.num_layers has the value '4'"),
    ("bool number", _set("max_seq_len", True), r"max_seq_len has the value True"),
    ("unknown flag", _set("target.new_flag", True), r"target\.new_flag is not known to this version"),
    ("rope kind", _set("target.rope.kind", "spiral"), r"target\.rope\.kind has the value 'spiral'"),
    ("llama3", _set("target.rope.kind", "llama3"), r"lacks the numbers that the kind llama3 needs"),
    ("no heads", _set("draft.num_kv_heads", 0), r"draft\.num_kv_heads is 0"),
    ("heads", _set("target.num_kv_heads", 3), r"num_heads 4 is not a multiple of num_kv_heads 3"),
    ("odd head", _set("draft.head_dim", 15), r"draft\.head_dim 15 is odd"),
    ("chain", _set("default_chain", 9), r"default_chain 9 and max_chain 8"),
    ("negative chain", _set("default_chain", -1), r"default_chain -1"),
    ("long chain", _set("max_chain", 1000), r"max_chain 1000"),
    ("prefill", _set("max_prefill", 0), r"min_prefill 1 and max_prefill 0"),
    ("context", _set("max_seq_len", 1), r"max_seq_len is 1"),
    ("template path", _set("template", "../../etc/passwd"), r"is not a plain name"),
    ("bos", _set("bos_id", 320), r"bos_id 320 is outside the vocabulary of 320"),
    ("stop", _set("stop_ids", [2, 999]), r"the stop id 999 is outside"),
    ("tap outside", _set("draft.taps", [1, 2, 5]), r"the tap 5 lies outside the target's 4 layers \(0\.\.4\)"),
    ("tap negative", _set("draft.taps", [-1, 2, 3]), r"the tap -1 lies outside"),
    ("taps order", _set("draft.taps", [2, 2, 3]), r"the taps \[2, 2, 3\] are not in ascending order"),
    ("no taps", _set("draft.taps", []), r"the draft has no taps"),
    ("tap count", _set("draft.taps", [1, 3]), r"fc\.weight has the shape \[64, 192\], not \[64, 128\]"),
    ("widths", _set("draft.target_hidden_size", 32), r"for a target of width 32, the target has 64"),
    ("draft vocab", _set("draft.draft_vocab_size", 640), r"vocabulary of 640 is larger than the target's of 320"),
    ("no head", _set("draft.own_head", False), r"has no head and cannot use the target's"),
    ("vocab", _set("target.vocab_size", 336), r"embed_tokens\.weight has the shape \[320, 64\], not \[336, 64\]"),
    ("tokenizer", _tokenizer, r"tokenizer\.json: has 321 tokens, the target knows 320"),
    ("tokenizer edited", lambda p: (p / "tokenizer.json").write_text("{}"), r"is not the tokenizer that this bundle"),
    ("no tokenizer", lambda p: (p / "tokenizer.json").unlink(), r"tokenizer\.json: cannot be read"),
    ("no template", lambda p: (p / "chat_template.jinja").unlink(), r"chat_template\.jinja: is missing"),
    ("no target", lambda p: (p / "target/model.safetensors").unlink(), r"target/model\.safetensors: is missing"),
    ("no draft", lambda p: (p / "draft/model.safetensors").unlink(), r"draft/model\.safetensors: cannot be read"),
    ("cut target", _truncate("target/model.safetensors"), r"cut off: its header asks for"),
    ("cut draft", _truncate("draft/model.safetensors"), r"cut off: its header asks for"),
    ("traversal", _index("../secret.safetensors"), r"names '\.\./secret\.safetensors', which is not a file of its"),
    ("absolute", _index("/etc/passwd"), r"names '/etc/passwd'"),
    ("shard", _index("model-2.safetensors"), r"model-2\.safetensors: is missing"),
    ("lost", _target(lambda t: t.pop(Q)), rf"the tensor {Q} is missing"),
    ("extra", _target(lambda t: t.update(extra=np.zeros(2, np.float32))), r"the tensor extra is not known here"),
    (
        "shape",
        _target(_replaced(Q, lambda x: x.T[:32].copy())),
        r"q_proj\.weight has the shape \[32, 64\], not \[64, 64\]",
    ),
    ("type", _target(_replaced(Q, lambda x: x.astype(np.int32))), r"q_proj\.weight has the type I32, not F32 or"),
    ("draft lost", _draft(lambda t: t.pop("fc.weight")), r"the tensor fc\.weight is missing"),
    ("draft extra", _draft(lambda t: t.update(d2t=np.zeros(2, np.int64))), r"the tensor d2t is not known here"),
    (
        "ids type",
        _draft(_replaced("target_ids", lambda x: x.astype(np.int32))),
        r"target_ids has the type I32, not I64",
    ),
    (
        "ids high",
        _draft(_replaced("target_ids", lambda x: x + 40)),
        r"is target id 3\d\d, outside the vocabulary of 320",
    ),
    ("ids negative", _draft(_replaced("target_ids", lambda x: x - 10)), r"outside the vocabulary"),
    ("ids order", _draft(_replaced("target_ids", lambda x: x[::-1].copy())), r"not ascending at draft token 1"),
]


@pytest.mark.parametrize(("breakage", "what"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_a_bad_bundle_gives_its_one_sentence(tmp_path: Path, breakage: Breakage, what: str) -> None:
    path = tiny_bundle(tmp_path)
    breakage(path)
    with pytest.raises(BundleError, match=what) as caught:
        open_bundle(path)
    assert str(path) in caught.value.message
    assert "\n" not in str(caught.value)
    assert caught.value.fix.endswith((".", "`."))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"quantized": True},
        {"dtype": "BF16", "qk_norm": True},
        {"dtype": "F16", "attention_bias": True},
        {"draft": False, "tied": True},
        {"own_embedding": True, "draft_head_dim": 32},
        {"draft_vocab": 320},
    ],
)
def test_a_good_bundle_opens_and_its_manifest_survives(tmp_path: Path, options: dict[str, Any]) -> None:
    path = tiny_bundle(tmp_path, **options)
    bundle = open_bundle(path)
    assert all(file.is_file() for file in (*bundle.target_files, bundle.tokenizer_file))
    assert (bundle.draft_file is None) == (options.get("draft") is False)
    assert bundle.template_file == path / "chat_template.jinja"
    write_manifest(path, bundle.manifest)
    assert read_manifest(path) == bundle.manifest


@pytest.mark.parametrize(
    ("breakage", "what"),
    [
        (_target(lambda t: t.pop(Q.replace("weight", "biases"))), r"q_proj\.biases is missing"),
        (_target(lambda t: t.pop(Q.replace("weight", "scales"))), r"q_proj\.scales is missing beside"),
        (_set("quantization", None), r"embed_tokens\.scales is quantised, but no quantisation is declared"),
        (_set("quantization.overrides", []), r"embed_tokens\.weight has the shape \[320, 16\], not \[320, 8\]"),
        (_set("quantization.bits", 7), r"is quantised to 7 bits in groups of 32"),
        (_set("quantization.group_size", 128), r"has 64 columns, which groups of 128 do not divide"),
    ],
)
def test_a_bad_quantised_bundle(tmp_path: Path, breakage: Breakage, what: str) -> None:
    path = tiny_bundle(tmp_path, quantized=True)
    breakage(path)
    with pytest.raises(BundleError, match=what):
        open_bundle(path)


def test_shards_are_read_as_one(tmp_path: Path) -> None:
    path = tiny_bundle(tmp_path)
    whole = path / "target" / "model.safetensors"
    tensors = load_file(whole)
    names = sorted(tensors)
    weight_map = {name: f"model-{1 + i % 2}.safetensors" for i, name in enumerate(names)}
    for shard in set(weight_map.values()):
        save_file({n: tensors[n] for n in names if weight_map[n] == shard}, path / "target" / shard)
    whole.unlink()
    (path / "target" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert [file.name for file in open_bundle(path).target_files] == ["model-1.safetensors", "model-2.safetensors"]
    save_file({names[0]: tensors[names[0]]} | load_file(path / "target/model-2.safetensors"), path / "target/x")
    (path / "target/x").rename(path / "target/model-2.safetensors")
    with pytest.raises(BundleError, match=r"is also in model-1\.safetensors"):
        open_bundle(path)


def test_not_a_directory(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="does not exist"):
        open_bundle(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    with pytest.raises(BundleError, match="is not a directory"):
        open_bundle(tmp_path / "file")


def test_keys_of_a_newer_writer_are_kept(tmp_path: Path) -> None:
    path = tiny_bundle(tmp_path)
    _set("colour", {"name": "blue"})(path)
    manifest: Manifest = open_bundle(path).manifest
    assert manifest.extra == {"colour": {"name": "blue"}}
    write_manifest(path, manifest)
    assert json.loads((path / "bundle.json").read_text())["colour"] == {"name": "blue"}


def test_the_door_needs_no_tensor_library(tmp_path: Path) -> None:
    path = tiny_bundle(tmp_path)
    script = (
        "import sys; from pathlib import Path; from eagle3chat.engine.bundle import open_bundle; "
        "open_bundle(Path(sys.argv[1])); "
        "print(sorted({'numpy', 'torch', 'safetensors', 'tokenizers', 'gguf'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
