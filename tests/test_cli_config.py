"""`eagle3chat config`."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path

import pytest

from eagle3chat.cli import main
from eagle3chat.key_table import PLACES
from eagle3chat.settings import Settings, load_settings
from eagle3chat.settings_template import template


@pytest.fixture(autouse=True)
def config_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "eagle3chat" / "settings.toml"


def test_the_template_changes_nothing() -> None:
    assert tomllib.loads(template()) == {}
    assert max(map(len, template().splitlines())) <= 120


def test_every_key_is_in_it_and_every_example_is_valid(config_home: Path) -> None:
    lines = [line[1:] if line[:1] == "#" and line[1:2] != " " else line for line in template().splitlines()]
    config_home.parent.mkdir()
    config_home.write_text("\n".join(lines))
    settings = load_settings()
    unset = [f.name for f in dataclasses.fields(Settings) if getattr(settings, f.name) == f.default]
    assert unset == []


def test_it_prints_the_path_and_the_keys(config_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"# {config_home} (not there yet")
    assert out.endswith(template())


def test_every_key_of_every_screen_is_in_it_with_what_it_does() -> None:
    keys = template().partition("#[keys]")[2]
    for place in PLACES:
        for row in place.rows:
            line = next(line for line in keys.splitlines() if f'"{row.id}" =' in line)
            assert f'= "{row.keys}"' in line and line.endswith(f"# {row.does}")


def test_init_writes_it_once(config_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--init"]) == 0
    assert capsys.readouterr().out.strip() == str(config_home)
    assert config_home.read_text() == template()
    config_home.write_text("chain = 3\n")
    assert main(["config", "--init"]) == 2
    assert config_home.read_text() == "chain = 3\n"
    assert main(["config"]) == 0
    assert "not there" not in capsys.readouterr().out


def test_a_mistake_in_the_file_is_told(config_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config_home.parent.mkdir()
    config_home.write_text("chains = 3\n")
    assert main(["config"]) == 2
    assert "unknown key, chains" in capsys.readouterr().err
    config_home.write_text('[keys]\n"trace.close" = "d"\n')
    assert main(["config"]) == 2
    assert "The key d would be both trace.close and trace.drafts" in capsys.readouterr().err
