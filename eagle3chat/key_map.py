"""Which keys do what after a person's changes, and how a screen spells them.

Lines about keys name ids: `<chat.copy> copies it` is `F6 copies it`, and `<chat.top*>` is all of its keys. Knows no
toolkit; key names are Textual's.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from eagle3chat.engine.errors import SettingError
from eagle3chat.key_table import BOX_KEYS, PLACES, PROMPT_KEYS, TOGETHER, KeyRow

_ROWS = {row.id: row for place in PLACES for row in place.rows}
_TYPED = {row.id: place.typed for place in PLACES for row in place.rows}
_EDITORS = {"prompt": ("the prompt's editor", PROMPT_KEYS), "box": ("the box to write in", BOX_KEYS)}
_MODIFIERS = ("ctrl", "alt", "shift", "super", "hyper", "meta")
_NAMED = frozenset(
    (
        *("escape", "enter", "tab", "space", "backspace", "delete", "insert", "home", "end", "pageup", "pagedown"),
        *("up", "down", "left", "right", *(f"f{n}" for n in range(1, 25))),
    )
)
_ALIASES = {"esc": "escape", "return": "enter", "pgup": "pageup", "pgdn": "pagedown", "del": "delete", "ins": "insert"}
_SHORT = {
    "solidus": "slash",
    "reverse_solidus": "backslash",
    "commercial_at": "at",
    "hyphen_minus": "minus",
    "plus_sign": "plus",
    "low_line": "underscore",
}
_SAME = {"ctrl+i": "Tab", "ctrl+m": "Enter", "ctrl+h": "Backspace", "ctrl+left_square_bracket": "Esc"}
_SPELLED = {"escape": "Esc", "enter": "Enter", "tab": "Tab", "pageup": "PgUp", "pagedown": "PgDn", "plus": "+"}
_FREE = "Use for example f10 or alt+c."
_ID = re.compile(r"<([a-z]+(?:\.[a-z]+)+)(\*?)>")
_RUN = re.compile(r"F(\d+)/F(\d+)/F(\d+)")


@dataclass(frozen=True, slots=True)
class KeyMap:
    """Keys by id.

    Args:
        changed: Pairs of an id and its keys, with commas between them, in place of the usual ones.
    """

    changed: tuple[tuple[str, str], ...] = ()

    def keys(self, id: str) -> tuple[str, ...]:
        """All keys of an id.

        Raises:
            KeyError: There is no such id.
        """
        return tuple(dict(self.changed).get(id, _ROWS[id].keys).split(","))

    def spelled(self, id: str) -> str:
        """Its first key, as a screen spells it."""
        return spelled(self.keys(id)[0])

    def all_spelled(self, id: str) -> str:
        """All its keys."""
        return ", ".join(map(spelled, self.keys(id)))

    def told(self, text: str) -> str:
        """A line about keys with the keys of the ids in it; three F keys in a row are told as F7-F9."""
        return _RUN.sub(_shortened, _ID.sub(self._of, text))

    def _of(self, match: re.Match[str]) -> str:
        if match[1] not in _ROWS:
            return match[0]
        return self.all_spelled(match[1]) if match[2] else self.spelled(match[1])


USUAL = KeyMap()


def _shortened(match: re.Match[str]) -> str:
    first, second, third = (int(number) for number in match.groups())
    return f"F{first}-F{third}" if (second, third) == (first + 1, first + 2) else match[0]


def spelled(key: str) -> str:
    """A key as a screen spells it: `Esc`, `F6`, `ctrl+y`, `/`."""
    *modifiers, name = key.split("+")
    if re.fullmatch(r"f\d+", name):
        name = name.upper()
    elif name in _SPELLED and (name == "plus" or not modifiers):
        name = _SPELLED[name]
    elif (character := _character(name)) is not None:
        name = character
    return "+".join((*modifiers, name))


def _character(name: str) -> str | None:
    """The character that a key is named after: `slash` is `/`."""
    if len(name) == 1 or name in _NAMED:
        return name if len(name) == 1 else None
    long = next((long for long, short in _SHORT.items() if short == name), name)
    for words in (long.replace("_", " "), long.replace("_", "-", 1).replace("_", " ")):
        try:
            return unicodedata.lookup(words)
        except KeyError:
            continue
    return None


def named(key: str, id: str) -> str:
    """A key as a person writes it, under the name that the toolkit gives it: `Ctrl+Y` is `ctrl+y`, `/` is `slash`.

    Raises:
        SettingError: There is no such key, or most terminals send another one for it.
    """
    key = key.strip()
    head, plus, name = key[:-1].rpartition("+")
    name += key[-1:]
    modifiers = head.lower().split("+") if plus else []
    lower = _ALIASES.get(name.lower(), name.lower())
    if len(name) == 1 and not name.isalnum():
        name = unicodedata.name(name, name).lower().replace("-", "_").replace(" ", "_")
        name = _SHORT.get(name, name)
    elif len(name) > 1 or modifiers:
        name = lower
    if not all(m in _MODIFIERS for m in modifiers) or not (name in _NAMED or _character(name) is not None):
        raise SettingError(f"There is no key {key!r}, as {id} has it.", _FREE)
    whole = "+".join((*(m for m in _MODIFIERS if m in modifiers), name))
    if whole in _SAME:
        raise SettingError(f"For {key} of {id} most terminals send {_SAME[whole]}.", "Choose another one.")
    return whole


def checked_keys(keys: Mapping[str, str]) -> KeyMap:
    """The key map of a settings file: keys (several with commas between them) by id.

    Raises:
        SettingError: An id is not known, has no key, or has one that does something else at the same place, or that
            is needed to write.
    """
    return KeyMap(_checked(tuple(sorted(keys.items()))))


def _checked(changed: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    mapped: dict[str, str] = {}
    for id, text in changed:
        if id not in _ROWS:
            from difflib import get_close_matches  # wanted seldom, and the start would wait for it

            near = get_close_matches(id, _ROWS, 3, 0.5)
            mean = f"Did you mean {' or '.join(near)}? " if near else ""
            raise SettingError(f"The table [keys] has an unknown id, {id!r}.", f"{mean}eagle3chat config lists all.")
        if not text.strip():
            raise SettingError(f"The id {id} in the table [keys] has no key.", f'Write for example: "{id}" = "f10"')
        mapped[id] = ",".join(dict.fromkeys(named(part, id) for part in _parts(text)))
        _must_not_be_needed(id, mapped[id])
    for rows in TOGETHER:
        _must_differ(rows, mapped)
    return tuple(mapped.items())


def _parts(text: str) -> Iterator[str]:
    """The keys of a list with commas; a comma alone is the key."""
    yield from ([part for part in text.split(",") if part.strip()] or [text.strip()[:1]])


def _must_not_be_needed(id: str, keys: str) -> None:
    """Where something is written, letters and the keys of its editor stay with it."""
    if not _TYPED[id]:
        return
    editor, needed = _EDITORS[_TYPED[id]]
    usual = {key for place in PLACES for row in place.rows if _TYPED[row.id] == _TYPED[id] for key in _usual(row)}
    for key in keys.split(","):
        if _writes(key):
            raise SettingError(f"The key {spelled(key)} of {id} is one to write with.", _FREE)
        if key in needed and key not in usual:
            raise SettingError(f"The key {spelled(key)} of {id} is needed by {editor}.", _FREE)


def _usual(row: KeyRow) -> list[str]:
    return row.keys.split(",")


def _writes(key: str) -> bool:
    """Whether a key puts a character into a text."""
    name = key.removeprefix("shift+")
    return name == "space" or ("+" not in name and _character(name) is not None)


def _must_differ(rows: tuple[KeyRow, ...], mapped: Mapping[str, str]) -> None:
    taken: dict[str, str] = {}
    for row in rows:
        for key in mapped.get(row.id, row.keys).split(","):
            if key in taken:
                fix = f"Give {taken[key]} or {row.id} another one in the table [keys]."
                raise SettingError(f"The key {spelled(key)} would be both {taken[key]} and {row.id}.", fix)
            taken[key] = row.id
