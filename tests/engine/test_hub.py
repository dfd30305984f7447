"""Hub ids: what counts as one, where it lands, and what is said when it cannot be had."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from quantised_dirs import hf_directory

from eagle3chat.engine.bundle import open_bundle
from eagle3chat.engine.errors import CheckpointError
from eagle3chat.engine.export import export_bundle
from eagle3chat.engine.hub import Located, located

hub = pytest.importorskip("huggingface_hub")
errors = pytest.importorskip("huggingface_hub.errors")


@pytest.mark.parametrize("place", ["model.gguf", "/a/b", "./a/b", "../a/b", "a/b/c", "a/b/c.bin", "~/a/b", "a b/c"])
def test_paths_are_no_ids(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "snapshot_download", _must_not_run)
    monkeypatch.setattr(hub, "hf_hub_download", _must_not_run)
    assert located(place) == Located(Path(place).expanduser(), "")


def test_a_path_that_exists_is_no_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "snapshot_download", _must_not_run)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert located("org/name") == Located(Path("org/name"), "")


def _must_not_run(*args: object, **kwargs: object) -> None:
    raise AssertionError("nothing is downloaded here")


def test_a_bundle_of_an_id_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = hf_directory(tmp_path).rename(tmp_path / "0123abcd")
    asked: list[Any] = []

    def download(repo: str, **kwargs: Any) -> str:
        asked.append((repo, kwargs["allow_patterns"]))
        return str(snapshot)

    monkeypatch.setattr(hub, "snapshot_download", download)
    manifest = open_bundle(export_bundle("org/Tiny-Model", None, tmp_path / "out")).manifest
    assert (manifest.name, manifest.sources[0].name) == ("Tiny-Model", "Tiny-Model")
    ((repo, wanted),) = asked
    assert repo == "org/Tiny-Model" and "*.safetensors" in wanted and not any("bin" in kind for kind in wanted)
    (snapshot / "model.safetensors").rename(snapshot / "pytorch_model.bin")
    assert located("org/Tiny-Model").path == snapshot
    assert "pytorch_model*.bin" in asked[-1][1]
    (snapshot / "pytorch_model.bin").unlink()
    with pytest.raises(
        CheckpointError, match=r"org/Tiny-Model holds no weights .* name a file: org/Tiny-Model/X\.gguf"
    ):
        located("org/Tiny-Model")


def test_one_gguf_file_of_a_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "hf_hub_download", lambda repo, file: f"/cache/{repo}/{file}")
    assert located("org/name-GGUF/m.Q4_1.gguf") == Located(Path("/cache/org/name-GGUF/m.Q4_1.gguf"), "m.Q4_1.gguf")


def test_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError) as caught:
        export_bundle("nobody-here/none-at-all", None, tmp_path / "out")
    assert str(caught.value) == (
        "nobody-here/none-at-all is not in the cache, and the hub cannot be reached. Give a directory, or go online."
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (errors.GatedRepoError, r"asks for its terms to be accepted on the hub"),
        (errors.RepositoryNotFoundError, r"is neither a path here nor on the hub, or it is private"),
        (errors.LocalEntryNotFoundError, r"is not in the cache, and the hub cannot be reached"),
        (OSError, r"org/name cannot be downloaded: odd\. Try again"),
    ],
)
def test_what_goes_wrong(error: type[Exception], what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = error.__new__(error)
    made.args = ("odd",)

    def download(*args: object, **kwargs: object) -> None:
        raise made

    monkeypatch.setattr(hub, "snapshot_download", download)
    with pytest.raises(CheckpointError, match=what):
        located("org/name")


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CheckpointError, match=r"org/name is not a path here, and huggingface_hub, .* is not installed"):
        located("org/name")
