"""export_bundle: what lands in the directory, its settings, and that nothing half made is left."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ggufs import tiny_gguf
from safetensors.numpy import load_file, save_file
from tiny import tiny_bundle

from eagle3chat.engine import export
from eagle3chat.engine.bundle import open_bundle
from eagle3chat.engine.errors import BundleError, CheckpointError, Eagle3Error, SettingError
from eagle3chat.engine.export import export_bundle, file_sha256
from eagle3chat.engine.hf_config import target_config_json
from eagle3chat.engine.manifest import read_manifest


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A Hugging Face directory of 4 layers, width 64, 320 tokens, with a chat template."""
    bundle = tiny_bundle(tmp_path / "made")
    path = tmp_path / "Tiny-Hf"
    shutil.copytree(bundle / "target", path)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(bundle / name, path / name)
    (path / "config.json").write_text(json.dumps(target_config_json(read_manifest(bundle).target, None)))
    return path


@pytest.fixture
def draft(tmp_path: Path, target: Path) -> Path:
    """A draft for it in the SpecForge layout."""
    bundle = tmp_path / "made" / "bundle"
    config = read_manifest(bundle).draft
    assert config is not None
    tensors = load_file(bundle / "draft" / "model.safetensors")
    ids = tensors.pop("target_ids")
    tensors = {name.replace("layers.0.", "midlayer."): value for name, value in tensors.items()}
    tensors["d2t"] = ids - np.arange(len(ids))
    path = tmp_path / "tiny-eagle3"
    path.mkdir()
    save_file(tensors, path / "model.safetensors")
    values = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "vocab_size": 320,
        "draft_vocab_size": config.draft_vocab_size,
        "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
    }
    (path / "config.json").write_text(json.dumps(values))
    return path


def _files(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.rglob("*")}


def test_a_pair_becomes_a_bundle(tmp_path: Path, target: Path, draft: Path) -> None:
    stages: list[tuple[str, float | None]] = []
    output = tmp_path / "new" / "out"
    made = export_bundle(
        target, draft, output, command="make it", progress=lambda stage, fraction: stages.append((stage, fraction))
    )
    assert made == output
    bundle = open_bundle(output)
    original = tmp_path / "made" / "bundle"
    assert bundle.manifest.target == read_manifest(original).target
    assert bundle.manifest.draft == read_manifest(original).draft
    for part in ("target", "draft"):
        mine, theirs = (load_file(p / part / "model.safetensors") for p in (output, original))
        assert mine.keys() == theirs.keys()
        assert all(np.array_equal(mine[name], theirs[name]) for name in mine)
    manifest = bundle.manifest
    assert (manifest.name, manifest.draft_name, manifest.template) == ("Tiny-Hf", "tiny-eagle3", "model")
    assert (manifest.default_chain, manifest.max_chain, manifest.max_prefill, manifest.max_seq_len) == (3, 8, 512, 256)
    assert (manifest.stop_ids, manifest.bos_id, manifest.command) == ((2, 0), -1, "make it")
    assert manifest.tokenizer_sha256 == file_sha256(target / "tokenizer.json")
    assert [(s.role, s.name) for s in manifest.sources] == [("target", "Tiny-Hf"), ("draft", "tiny-eagle3")]
    assert manifest.sources[1].size == sum(file.stat().st_size for file in draft.iterdir())
    fractions = [fraction for _, fraction in stages if fraction is not None]
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0.0, 1.0)
    assert _files(tmp_path / "new") == {
        "out",
        "out/bundle.json",
        "out/chat_template.jinja",
        "out/draft",
        "out/draft/config.json",
        "out/draft/model.safetensors",
        "out/target",
        "out/target/config.json",
        "out/target/model.safetensors",
        "out/tokenizer.json",
        "out/tokenizer_config.json",
    }


def test_a_target_alone_decodes_plainly(tmp_path: Path) -> None:
    tiny_gguf(tmp_path / "m.gguf", keys={"tokenizer.chat_template": "{{ messages }}"})
    manifest = open_bundle(export_bundle(tmp_path / "m.gguf", None, tmp_path / "out")).manifest
    assert (manifest.draft, manifest.default_chain, manifest.max_chain) == (None, 0, 0)
    assert manifest.sources[0].sha256 == file_sha256(tmp_path / "m.gguf")
    assert manifest.sources[0].size == (tmp_path / "m.gguf").stat().st_size


def test_settings_reach_the_manifest(tmp_path: Path, target: Path, draft: Path) -> None:
    out = export_bundle(
        target,
        draft,
        tmp_path / "out",
        template="chatml",
        chain=0,
        max_chain=5,
        max_prefill=64,
        max_seq_len=100,
        taps=[0, 3, 4],
        name="Named",
    )
    manifest = open_bundle(out).manifest
    assert manifest.draft is not None
    assert manifest.draft.taps == (0, 3, 4)
    assert (manifest.name, manifest.template, manifest.default_chain, manifest.max_chain) == ("Named", "chatml", 0, 5)
    assert (manifest.max_prefill, manifest.max_seq_len) == (64, 100)


def test_the_context_is_never_longer_than_the_targets(tmp_path: Path, target: Path) -> None:
    assert read_manifest(export_bundle(target, None, tmp_path / "out", max_seq_len=9999)).max_seq_len == 256


def test_where_the_template_comes_from(tmp_path: Path, target: Path) -> None:
    (tmp_path / "mine.jinja").write_text("{{ messages[0].content }}")
    out = export_bundle(target, None, tmp_path / "a", template=str(tmp_path / "mine.jinja"))
    assert (read_manifest(out).template, (out / "chat_template.jinja").read_text()) == (
        "model",
        "{{ messages[0].content }}",
    )
    (target / "chat_template.jinja").unlink()
    assert read_manifest(export_bundle(target, None, tmp_path / "b")).template == "chatml"  # by its control tokens
    with pytest.raises(SettingError, match="The chat template 'nonsense' is not known"):
        export_bundle(target, None, tmp_path / "c", template="nonsense")
    with pytest.raises(SettingError, match="The chat template 'model' is not known"):
        export_bundle(target, None, tmp_path / "c", template="model")
    tiny_gguf(tmp_path / "m.gguf")
    with pytest.raises(CheckpointError, match=r"m has no chat template\. Name one with --template"):
        export_bundle(tmp_path / "m.gguf", None, tmp_path / "c")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"chain": -1}, r"A chain of -1 is not possible\. Use 0 \(plain decoding\) to 8\."),
        ({"chain": 9}, r"A chain of 9 is not possible"),
        ({"max_chain": 65}, r"A maximum chain of 65"),
        ({"max_prefill": 0}, r"A prefill chunk of 0 tokens"),
        ({"max_seq_len": 1}, r"A context of 1 positions"),
        ({"taps": [1, 2, 5]}, r"the tap 5 lies outside the target's 4 layers"),
        ({"taps": [1, 2]}, r"fc\.weight reads 3 taps, and there are 2"),
    ],
)
def test_settings_out_of_range(tmp_path: Path, target: Path, draft: Path, options: dict[str, Any], what: str) -> None:
    with pytest.raises(Eagle3Error, match=what):
        export_bundle(target, draft, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_bundle_is_replaced_and_other_directories_are_not(tmp_path: Path, target: Path) -> None:
    out = export_bundle(target, None, tmp_path / "out", name="first")
    export_bundle(target, None, out, name="second")
    assert open_bundle(out).manifest.name == "second"
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "thesis").write_text("")
    with pytest.raises(BundleError, match="papers: is neither empty nor a bundle"):
        export_bundle(target, None, tmp_path / "papers")
    assert _files(tmp_path / "papers") == {"thesis"}
    with pytest.raises(BundleError, match="thesis: is a file"):
        export_bundle(target, None, tmp_path / "papers" / "thesis")
    (tmp_path / "empty").mkdir()
    assert open_bundle(export_bundle(target, None, tmp_path / "empty")).manifest.name == "Tiny-Hf"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), OSError(28, "No space left on device")])
def test_an_interrupted_export_leaves_what_was_there(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    out = export_bundle(target, None, tmp_path / "place" / "out", name="first")

    def interrupted(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr(export, "write_manifest", interrupted)
    expected: type[BaseException] = BundleError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected) as caught:
        export_bundle(target, None, out, name="second")
    if isinstance(error, OSError):
        assert str(caught.value) == (
            f"{out}: cannot be written (No space left on device). Free some space, or choose another directory."
        )
    assert [path.name for path in (tmp_path / "place").iterdir()] == ["out"]
    assert open_bundle(out).manifest.name == "first"


def test_the_old_bundle_comes_back_when_the_new_one_cannot_take_its_place(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = export_bundle(target, None, tmp_path / "place" / "out", name="first")
    rename = Path.rename

    def refused(self: Path, to: Path) -> Path:
        if self.name == "bundle":
            raise OSError(13, "Permission denied")
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(BundleError, match="Permission denied"):
        export_bundle(target, None, out, name="second")
    with pytest.raises(BundleError, match="Permission denied"):
        export_bundle(target, None, tmp_path / "place" / "new")
    assert [path.name for path in (tmp_path / "place").iterdir()] == ["out"]
    assert open_bundle(out).manifest.name == "first"


def test_sources_notice_a_changed_byte(tmp_path: Path, target: Path, draft: Path) -> None:
    before = read_manifest(export_bundle(target, draft, tmp_path / "out")).sources
    assert read_manifest(export_bundle(target, draft, tmp_path / "out")).sources == before
    (target / "generation_config.json").write_text("{}")
    after = read_manifest(export_bundle(target, draft, tmp_path / "out")).sources
    assert after[0] != before[0]
    assert after[1] == before[1]
