"""A list in a reply."""

from __future__ import annotations

from eagle3chat.ui.widgets.rows import Rows


class Listing(Rows):
    """A list of paragraphs."""
