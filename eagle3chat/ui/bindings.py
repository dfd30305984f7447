"""The keys of the chat, each with an id that a key map can name. Knows no action's code."""

from __future__ import annotations

import re
from collections.abc import Mapping

from textual.binding import Binding

from eagle3chat.engine.errors import SettingError

CHAT_KEYS = (
    Binding("escape", "stop", "Stop", id="chat.stop", priority=True),
    Binding("ctrl+c", "interrupt", "Copy, stop, clear, leave", id="chat.interrupt", priority=True),
    Binding("ctrl+q", "quit", "Leave", id="chat.quit", priority=True),
    Binding("f1", "help", "Help", id="chat.help", priority=True),
    Binding("f2", "sessions", "Saved conversations", id="chat.sessions", priority=True),
    Binding("f3", "marks", "Marks", id="chat.marks", priority=True),
    Binding("f4", "inspect", "Inspect rounds", id="chat.inspect", priority=True),
    Binding("f5", "restart", "Restart the worker", id="chat.restart", priority=True),
    Binding("f6", "copy", "Copy the last reply", id="chat.copy", priority=True),
    Binding("ctrl+r", "again", "Another reply", id="chat.again", priority=True),
    Binding("ctrl+l", "alternative", "Next of the replies", id="chat.alternative", priority=True),
    Binding("ctrl+n", "new", "New conversation", id="chat.new", priority=True),
    Binding("ctrl+o", "editor", "Draft in the editor", id="chat.editor", priority=True),
    Binding("f12,alt+up", "top", "Beginning of the last reply", id="chat.top", priority=True),
    Binding("f7", "auto", "Chain that finds its length", id="chat.chain.auto", priority=True),
    Binding("f8", "chain(-1)", "Shorter chain", id="chat.chain.shorter", priority=True),
    Binding("f9", "chain(1)", "Longer chain", id="chat.chain.longer", priority=True),
    Binding("ctrl+g", "temperature(-1)", "Cooler", id="chat.temperature.down", priority=True),
    Binding("ctrl+t", "temperature(1)", "Warmer", id="chat.temperature.up", priority=True),
    Binding("pageup", "page(-1)", "Page up", id="chat.page.up", priority=True),
    Binding("pagedown", "page(1)", "Page down", id="chat.page.down", priority=True),
    Binding("ctrl+home", "edge(-1)", "First turn", id="chat.start", priority=True),
    Binding("ctrl+end", "edge(1)", "Last turn", id="chat.end", priority=True),
)

_KEY = re.compile(r"\bF\d+\b|\b(?:ctrl|alt|shift)\+\w+|\bEsc\b|\bPg(?:Up|Dn)\b")
PROMPT_KEYS = {"prompt.send": "enter", "prompt.line": "shift+enter,ctrl+j", "prompt.complete": "tab"}
CHAT_ONLY = frozenset(binding.action.partition("(")[0] for binding in CHAT_KEYS) - {"quit"}
"""Actions that another screen above the chat takes the keys from."""


def checked_keys(keys: Mapping[str, str]) -> dict[str, str]:
    """A key map: keys (several with commas between them) by the id of a binding.

    Raises:
        SettingError: An id is not known, has no key, or has one that does something else already.
    """
    usual = {binding.id: binding.key for binding in CHAT_KEYS if binding.id} | PROMPT_KEYS
    for id, key in keys.items():
        if id not in usual:
            raise SettingError(f"There is no key with the id {id!r}.", f"Known ids: {', '.join(usual)}.")
        if not key.strip():
            raise SettingError(f"The id {id} has no key.", 'Write for example: chat.copy = "ctrl+y"')
    mapped = {id: ",".join(part.strip() for part in key.split(",")) for id, key in keys.items()}
    taken: dict[str, str] = {}
    for id, keys_of in usual.items():
        for key in mapped.get(id, keys_of).split(","):
            if len(key) == 1 or key == "space":
                raise SettingError(f"The key {key} of {id} is one to write with.", f"Write for example: ctrl+{key[:1]}")
            if key in taken:
                fix = f"Give {taken[key]} or {id} another one."
                raise SettingError(f"The key {key} would be both {taken[key]} and {id}.", fix)
            taken[key] = id
    return mapped


def respelled(text: str, keys: Mapping[str, str]) -> str:
    """A line about keys, with those of a key map in the place of the usual ones."""
    usual = {binding.id: binding.key.split(",")[0] for binding in CHAT_KEYS}
    changed = {_spelled(usual[id]): _spelled(key.split(",")[0]) for id, key in keys.items() if id in usual}
    if any(key in changed for key in ("F7", "F8", "F9")):
        text = text.replace("F7-F9", "F7/F8/F9")
    return _KEY.sub(lambda match: changed.get(match[0], match[0]), text)


def _spelled(key: str) -> str:
    """A key as the screen spells it."""
    names = {"escape": "Esc", "pageup": "PgUp", "pagedown": "PgDn"}
    return names.get(key) or (key.upper() if re.fullmatch(r"f\d+", key) else key)
