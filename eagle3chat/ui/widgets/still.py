"""Text that stays as it is."""

from __future__ import annotations

from textual.widgets import Static

from eagle3chat.ui.widgets.kept import Kept


class Still(Static, Kept):
    """Text that keeps its rows."""
