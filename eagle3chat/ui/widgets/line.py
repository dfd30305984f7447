"""A row of fixed height whose text depends on its width."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from textual.content import Content
from textual.widget import Widget


class Line(Widget):
    """One row. Subclasses say what fits into a width; drawing it again never moves anything."""

    DEFAULT_CSS = """
    Line { height: 1; width: 1fr; text-wrap: nowrap; text-overflow: ellipsis; }
    """
    ALLOW_SELECT = False

    def line(self, width: int) -> Content:
        """The row for `width` cells."""
        raise NotImplementedError

    def render(self) -> Content:
        return self.line(self.content_size.width)


def spread(left: Content, right: Content, width: int) -> Content:
    """Left and right in one row; the right one goes where there is no room for both."""
    gap = width - left.cell_length - right.cell_length
    if gap < 2:
        return left
    return Content.assemble(left, " " * gap, right)


def first_fitting(variants: Iterable[Content], width: int) -> Content:
    """The first variant that is not wider than `width`, else the last."""
    chosen = Content("")
    for chosen in variants:
        if chosen.cell_length <= width:
            break
    return chosen


def joined(parts: Sequence[Content | str | tuple[str, str]], separator: str) -> Content:
    """Parts with a quiet separator between them; empty ones are left out."""
    contents = [part if isinstance(part, Content) else Content.assemble(part) for part in parts]
    shown = [content for content in contents if content.plain]
    return Content.styled(separator, "$quiet").join(shown)
