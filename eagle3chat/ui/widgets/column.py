"""The turns of a conversation, one below the other."""

from __future__ import annotations

from textual.containers import Vertical
from textual.geometry import Size
from textual.reactive import Reactive


class Column(Vertical):
    """The turns, not wider than one likes to read."""

    BLANK = True  # nothing of its own to draw, so nothing to keep for each of its rows
    # It does not scroll, and the layout that sets it draws it: nothing more to do when it grows.
    virtual_size: Reactive[Size] = Reactive(Size(0, 0), repaint=False)
