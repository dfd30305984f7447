"""Templates from files: TOML, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3chat.engine.errors import TemplateError
from eagle3chat.engine.requests import Message
from eagle3chat.templates import load_template

PHI = """
user = ["<|user|>\\n", "<|end|>\\n"]
assistant = ["<|assistant|>\\n", "<|end|>\\n"]
system = ["<|system|>\\n", "<|end|>\\n"]
stop_tokens = ["<|end|>"]
"""


def written(directory: Path, text: str | bytes, name: str = "mine.toml") -> str:
    path = directory / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_a_toml_file_names_what_stands_around_messages(tmp_path: Path) -> None:
    template = load_template(written(tmp_path, PHI))
    talk = [Message("system", "S"), Message("user", " U "), Message("assistant", "A"), Message("user", "V")]
    assert "".join(piece.text for piece in template.render(talk)) == (
        "<|system|>\nS<|end|>\n<|user|>\n U <|end|>\n<|assistant|>\nA<|end|>\n<|user|>\nV<|end|>\n<|assistant|>\n"
    )
    assert template.stop_tokens == ("<|end|>",)
    assert template.name == "mine.toml"


def test_a_toml_file_may_start_replies_otherwise(tmp_path: Path) -> None:
    text = 'opening = "<s>"\nuser = ["U:", "\\n"]\nassistant = ["A:", "\\n"]\nstart_reply = "A:<think>"\ntrim = true\n'
    template = load_template(written(tmp_path, text))
    talk = [Message("user", " u "), Message("assistant", "a"), Message("user", "v")]
    assert "".join(piece.text for piece in template.render(talk)) == "<s>U:u\nA:a\nU:v\nA:<think>"
    with pytest.raises(TemplateError, match="no place for a system text"):
        template.render([Message("system", "s")])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("user = [", "not TOML"),
        ('user = ["a", "b"]', "lacks 'assistant'"),
        ('assistant = ["a", "b"]', "lacks 'user'"),
        ('user = ["a"]\nassistant = ["a", "b"]', "'user' .* pair of texts"),
        ('user = "ab"\nassistant = ["a", "b"]', "'user' .* pair of texts"),
        ('user = ["a", 1]\nassistant = ["a", "b"]', "'user' .* pair of texts"),
        (PHI.replace("stop_tokens", "stop"), "unknown key 'stop'"),
        (PHI.replace('["<|end|>"]', '"<|end|>"'), "'stop_tokens' .* list of texts"),
        (PHI + "trim = 1\n", "'trim' .* not true or false"),
        (PHI + "opening = 1\n", "'opening' .* not a text"),
        (b"\xff\xfe", "not UTF-8"),
        (b"#" * ((1 << 20) + 1), "larger than"),
    ],
)
def test_a_wrong_toml_file_is_refused(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(TemplateError, match=message) as caught:
        load_template(written(tmp_path, text))
    assert caught.value.fix


@pytest.mark.parametrize("name", ["none.toml", "none.jinja", "sub/none.j2"])
def test_a_missing_file_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(TemplateError, match="none"):
        load_template(str(tmp_path / name))


def test_a_file_of_another_kind_and_a_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match="no known kind") as caught:
        load_template(written(tmp_path, "x", "template.txt"))
    assert ".jinja" in caught.value.fix
    with pytest.raises(TemplateError, match="no template called"):
        load_template(str(tmp_path))
    (tmp_path / "d.toml").mkdir()
    with pytest.raises(TemplateError, match="cannot be read"):
        load_template(str(tmp_path / "d.toml"))


def test_the_models_own_template_must_be_there(tmp_path: Path) -> None:
    for directory in (None, tmp_path):
        with pytest.raises(TemplateError, match="brings no chat template") as caught:
            load_template("model", bundle_dir=directory)
        assert "chatml" in caught.value.fix
