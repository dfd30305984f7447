"""A paragraph or a heading of a reply."""

from __future__ import annotations

from textual.content import Content
from textual.geometry import Size
from textual.reactive import Reactive

from eagle3chat.ui.widgets.still import Still


class Paragraph(Still):
    """A paragraph or a heading."""

    virtual_size: Reactive[Size] = Reactive(Size(0, 0), repaint=False)  # it does not scroll: no second layout for it

    def __init__(self, content: Content) -> None:
        super().__init__(content, markup=False)
