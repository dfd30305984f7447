"""Finds a template by name or file."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from eagle3chat.engine.errors import TemplateError
from eagle3chat.engine.small_files import read_small
from eagle3chat.templates.base import Template
from eagle3chat.templates.chatml import CHATML
from eagle3chat.templates.gemma4 import GEMMA4
from eagle3chat.templates.llama3 import LLAMA3
from eagle3chat.templates.turn_file import parse_turn_file
from eagle3chat.templates.turns import TurnTemplate

MODEL = "model"
"""The name of the template that comes with a bundle."""

_BUILT_IN = {template.name: template for template in (GEMMA4, CHATML, LLAMA3)}
_JINJA = frozenset({".jinja", ".jinja2", ".j2"})
_MAX_BYTES = 1 << 20


def known_templates() -> tuple[str, ...]:
    """Names that `load_template` takes besides files."""
    return (*_BUILT_IN, MODEL)


def load_template(name_or_path: str, *, bundle_dir: Path | None = None) -> Template:
    """A built-in template, the bundle's own ("model"), or one from a .jinja or .toml file.

    Args:
        bundle_dir: Holds chat_template.jinja, and tokenizer_config.json with the names of the special tokens that
            Jinja templates may ask for.

    Raises:
        TemplateError: The name is unknown, or the file is missing, unreadable or wrong.
    """
    if built_in := _BUILT_IN.get(name_or_path):
        return built_in
    if name_or_path == MODEL:
        path = None if bundle_dir is None else bundle_dir / "chat_template.jinja"
        if path is None or not path.is_file():
            raise TemplateError("The model brings no chat template of its own.", _known_fix(_BUILT_IN))
        return _load_jinja(path, MODEL, bundle_dir)
    path = Path(os.path.expanduser(name_or_path))
    if path.suffix in _JINJA:
        return _load_jinja(path, path.name, bundle_dir)
    if path.suffix == ".toml":
        return parse_turn_file(_read(path), path.name)
    if path.is_file():
        raise TemplateError(f"The template file {name_or_path} is of no known kind.", "Let it end in .jinja or .toml.")
    raise TemplateError(f"There is no template called {name_or_path!r}.", _known_fix(known_templates()))


def affix_template(prefix: str, suffix: str, *, reply_suffix: str = "") -> Template:
    """A template of two texts: prefix, the user's message, suffix, the reply, and so on.

    Args:
        reply_suffix: After each reply in the history: the model's end of turn. The reference runner knows single
            turns only and has no flag for it.
    """
    return TurnTemplate(name="affixes", user=(prefix, suffix), assistant=("", reply_suffix))


def _load_jinja(path: Path, name: str, bundle_dir: Path | None) -> Template:
    from eagle3chat.templates.jinja_template import JinjaTemplate, read_special_tokens  # Jinja is not needed at start

    config = bundle_dir / "tokenizer_config.json" if bundle_dir else None
    return JinjaTemplate(_read(path), name=name, special_tokens=read_special_tokens(config))


def _read(path: Path) -> str:
    fix = "Name a readable text file."
    try:
        data = read_small(path, _MAX_BYTES)
    except OSError as error:
        raise TemplateError(f"The template file {path} cannot be read: {error.strerror}.", fix) from error
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise TemplateError(f"The template file {path} is not UTF-8.", fix) from error


def _known_fix(names: Iterable[str]) -> str:
    return f"Use {', '.join(names)}, or a .jinja or .toml file, with --template."
