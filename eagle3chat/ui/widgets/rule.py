"""A thin line, perhaps with a title."""

from __future__ import annotations

from textual.content import Content

from eagle3chat.ui.widgets.line import Line


class Rule(Line):
    """A thin line, perhaps with a title."""

    def __init__(self, glyph: str, title: str = "", *, id: str) -> None:
        super().__init__(id=id)
        self._glyph, self._title = glyph, title

    def line(self, width: int) -> Content:
        head = f"{self._glyph} " if self._title else ""
        rest = width - len(head) - len(self._title) - (1 if self._title else 0)
        tail = f" {self._glyph * rest}" if self._title else self._glyph * width
        return Content.assemble((head, "$hairline"), (self._title, "$quiet"), (tail, "$hairline"))
