"""Templates in TOML files: the affixes of `TurnTemplate`, written down.

    user = ["<|user|>\n", "<|end|>\n"]            # before and after a message of the user
    assistant = ["<|assistant|>\n", "<|end|>\n"]  # before and after a reply
    system = ["<|system|>\n", "<|end|>\n"]        # leave out where the model knows no system text
    stop_tokens = ["<|end|>"]                     # control tokens that end a reply
    start_reply = "<|assistant|>\n"               # starts the reply to come; default: what stands before a reply
    opening = ""                                  # before the first turn; BOS is added by itself
    trim = false                                  # strip white space around messages

`user` and `assistant` must be there; the rest may be left out.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any, TypeGuard

from eagle3chat.engine.errors import TemplateError
from eagle3chat.templates.turns import Affixes, TurnTemplate

_KEYS = ("user", "assistant", "system", "stop_tokens", "start_reply", "opening", "trim")


def parse_turn_file(text: str, name: str) -> TurnTemplate:
    """The template that a TOML text describes.

    Raises:
        TemplateError: The text is not TOML, or a key is missing, unknown or of the wrong type.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TemplateError(f"The template {name} is not TOML: {error}.", "Mend the file.") from error
    if unknown := sorted(set(table) - set(_KEYS)):
        raise TemplateError(f"The template {name} has the unknown key {unknown[0]!r}.", f"Known: {', '.join(_KEYS)}.")
    for key in ("user", "assistant"):
        if key not in table:
            raise TemplateError(f"The template {name} lacks {key!r}.", _affix_fix(key))
    stop_tokens = table.get("stop_tokens", [])
    if not _is_texts(stop_tokens):
        raise TemplateError(f"'stop_tokens' of the template {name} is not a list of texts.", "Name control tokens.")
    return TurnTemplate(
        name=name,
        user=_affixes(table, "user", name),
        assistant=_affixes(table, "assistant", name),
        system=_affixes(table, "system", name) if "system" in table else None,
        opening=_typed(table, "opening", str, "", name),
        start_reply=_typed(table, "start_reply", str, None, name),
        trim=_typed(table, "trim", bool, False, name),
        stop_tokens=tuple(stop_tokens),
    )


def _affixes(table: Mapping[str, object], key: str, name: str) -> Affixes:
    value = table[key]
    if not _is_texts(value) or len(value) != 2:
        raise TemplateError(f"{key!r} of the template {name} is not a pair of texts.", _affix_fix(key))
    before, after = value
    return before, after


def _affix_fix(key: str) -> str:
    return f'Write {key} = ["before", "after"].'


def _is_texts(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _typed(table: Mapping[str, Any], key: str, kind: type, default: Any, name: str) -> Any:
    value = table.get(key, default)
    if key in table and not isinstance(value, kind):
        wanted = "true or false" if kind is bool else "a text"
        raise TemplateError(f"{key!r} of the template {name} is not {wanted}.", "Mend the file.")
    return value
