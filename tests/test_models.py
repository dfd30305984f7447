"""The bundles to choose from."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3chat.models import MOST_RECENT, model_at, models, recent, remember


def bundle(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "bundle.json").write_text("{}")
    return path


def test_recent_ones_come_first_and_each_once(tmp_path: Path) -> None:
    a, b = bundle(tmp_path / "bundles" / "a"), bundle(tmp_path / "bundles" / "b")
    far, gone = bundle(tmp_path / "elsewhere" / "c"), bundle(tmp_path / "elsewhere" / "d")
    file = tmp_path / "recent-bundles.txt"
    for path in (b, gone, far, b):
        remember(str(path), file)
    (gone / "bundle.json").unlink()
    found = models(tmp_path)
    assert [model.path for model in found] == [b, far, a]
    assert all("bundle.json" in model.problem for model in found)


def test_the_list_is_short_and_survives_damage(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "recent.txt"
    for number in range(MOST_RECENT + 5):
        remember(str(tmp_path / str(number)), file)
    assert [path.name for path in recent(file)] == [str(n) for n in range(MOST_RECENT + 4, 4, -1)]
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    file.write_bytes(b"\xff\xfe")
    assert recent(file) == []
    assert models(tmp_path / "nothing") == []


def test_a_disk_that_cannot_be_written_costs_the_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")
    remember("a", tmp_path / "file" / "recent.txt")
    assert (tmp_path / "file").read_text() == "x"


def test_no_bundle(tmp_path: Path) -> None:
    assert model_at(tmp_path).problem and model_at(tmp_path / "none").name == "none"
