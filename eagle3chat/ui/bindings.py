"""The table of keys as the toolkit's bindings, each with the id that a key map names. Knows no action's code."""

from __future__ import annotations

from textual.binding import Binding, BindingType

from eagle3chat.key_table import CHAT, EVERYWHERE, Place

CHAT_ONLY = frozenset(row.action.partition("(")[0] for row in CHAT.rows if row not in EVERYWHERE)
"""Actions that another screen above the chat takes the keys from."""


def bindings(place: Place) -> list[BindingType]:
    """The bindings of a place; where something is written they go before what the editor does with a key."""
    first = bool(place.typed)
    return [Binding(row.keys, row.action, row.does, id=row.id, priority=first, show=False) for row in place.rows]
