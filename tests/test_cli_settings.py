"""The settings file and its merge with flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3chat.arguments import build_parser
from eagle3chat.engine.errors import SettingError
from eagle3chat.engine.requests import Message
from eagle3chat.settings import Settings, load_settings, settings_path
from eagle3chat.wishes import Wishes, read_wishes


def wishes_of(settings: str, *argv: str, directory: Path) -> Wishes:
    file = directory / "settings.toml"
    file.write_text(settings)
    return read_wishes(build_parser().parse_args(["run", "--settings", str(file), *argv]), max_new_tokens=128)


def test_every_key_is_read(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text(
        'model = "~/m"\ntemperature = 1\ntop_k = 5\ntop_p = 0.9\nmin_p = 0.1\nchain = 2\nmax_new_tokens = 7\n'
        "repetition_penalty = 1.1\npresence_penalty = 0.5\nfrequency_penalty = -1\n"
        'theme = "dark"\nmarks = "subtle"\ndtype = "int4"\nbackend = "torch"\ndevice = "cpu"\nthreads = 2\n'
        'template = "chatml"\nsystem = "Be brief."\n'
        '[keys]\nchat.copy = "f10"\n"chat.chain.longer" = "f2"\n'
    )
    assert load_settings(file) == Settings(
        "~/m",
        1.0,
        5,
        0.9,
        0.1,
        1.1,
        0.5,
        -1.0,
        2,
        7,
        "dark",
        "subtle",
        "int4",
        "torch",
        "cpu",
        2,
        "chatml",
        "Be brief.",
        (("chat.copy", "f10"), ("chat.chain.longer", "f2")),
    )


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("chian = 3", "chian"),
        ("[chain]\nx = 1", "chain"),
        ('chain = "3"', "chain"),
        ("chain = true", "chain"),
        ("chain = 2.0", "chain"),
        ("chain = -1", "-1"),
        ("temperature = false", "temperature"),
        ("temperature = -0.5", "-0.5"),
        ("temperature = nan", "nan"),
        ("top_p = 0", "top-p"),
        ("repetition_penalty = 0", "repetition penalty of 0.0"),
        ("presence_penalty = 3", "presence penalty of 3.0"),
        ('frequency_penalty = "1"', "frequency_penalty"),
        ("max_new_tokens = 0", "max_new_tokens"),
        ("threads = 0", "threads"),
        ('dtype = "int8"', "int4"),
        ("theme = 3", "theme"),
        ('theme = "nonesuch"', "light"),
        ('marks = "loud"', "subtle"),
        ("keys = 1", "keys"),
        ("[keys]\nchat.copy = 1", "keys"),
        ("chain = ", "TOML"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_its_file(text: str, named: str, tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text(text)
    with pytest.raises(SettingError) as caught:
        load_settings(file)
    assert named in str(caught.value)
    assert str(file) in str(caught.value)


def test_bytes_that_are_no_text_are_an_error(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_bytes(b"system = '\xff'")
    with pytest.raises(SettingError, match="cannot be read"):
        load_settings(file)


def test_only_a_file_that_was_named_must_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert settings_path() == tmp_path / "eagle3chat" / "settings.toml"
    assert load_settings() == Settings()
    with pytest.raises(SettingError, match="does not exist"):
        load_settings(tmp_path / "gone.toml")


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    file = 'chain = 2\ntemperature = 0.5\ntop_k = 9\nmax_new_tokens = 50\nmodel = "/m"\nsystem = "S"\ndtype = "int4"'
    wishes = wishes_of(file, "--chain", "0", "--temperature", "0", "--dtype", "float32", directory=tmp_path)
    assert (wishes.chain, wishes.sampling.temperature, wishes.options.dtype) == (0, 0.0, "float32")
    assert (wishes.sampling.top_k, wishes.max_new_tokens, wishes.options.bundle) == (9, 50, "/m")
    assert wishes.messages("P") == (Message("system", "S"), Message("user", "P"))


def test_defaults_without_flags_and_file(tmp_path: Path) -> None:
    wishes = wishes_of("", directory=tmp_path)
    assert (wishes.chain, wishes.max_new_tokens, wishes.options.bundle) == (None, 128, "")
    assert wishes.controls(5).chain == 5
    assert wishes.messages("P") == (Message("user", "P"),)


def test_a_seed_is_drawn_unless_given(tmp_path: Path) -> None:
    drawn = {wishes_of("", directory=tmp_path).sampling.seed for _ in range(4)}
    assert len(drawn) > 1
    assert wishes_of("", "--seed", "7", directory=tmp_path).sampling.seed == 7


def test_penalties_of_flags_and_file(tmp_path: Path) -> None:
    file = "repetition_penalty = 1.2\npresence_penalty = 0.5"
    sampling = wishes_of(file, "--presence-penalty", "0", "--frequency-penalty", "0.3", directory=tmp_path).sampling
    assert (sampling.repetition, sampling.presence, sampling.frequency) == (1.2, 0.0, 0.3)
    assert not wishes_of("", directory=tmp_path).sampling.penalises
    with pytest.raises(SettingError, match="repetition penalty of 0"):
        wishes_of("", "--repetition-penalty", "0", directory=tmp_path)


def test_a_check_is_asked_for(tmp_path: Path) -> None:
    assert wishes_of("", "--check", directory=tmp_path).options.check
    assert not wishes_of("", directory=tmp_path).options.check


def test_stops_as_the_reference_has_them(tmp_path: Path) -> None:
    plain = wishes_of("", directory=tmp_path).options
    assert (plain.stop_ids, plain.stop_tokens, plain.stop_strings, plain.bos_id) == (None, None, (), None)
    argv = ("--stop-ids", "1,50,106", "--stop-token", "<end>", "--stop", "a", "--stop", "b", "--bos-id", "-1")
    given = wishes_of("", *argv, directory=tmp_path).options
    assert given.stop_ids == (1, 50, 106)
    assert (given.stop_tokens, given.stop_strings, given.bos_id) == (("<end>",), ("a", "b"), -1)
    none = wishes_of("", "--stop-ids", "", "--stop-token", "", directory=tmp_path).options
    assert (none.stop_ids, none.stop_tokens) == ((), ())


def test_a_flag_before_the_command_counts(tmp_path: Path) -> None:
    parse = build_parser().parse_args
    assert parse(["--model", "/a", "run"]).model == "/a"
    assert parse(["--model", "/a", "run", "--model", "/b"]).model == "/b"
    assert parse([]).command == "chat"
