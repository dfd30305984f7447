"""A list of any length, of which only the rows in sight are drawn; one of them is chosen. Takes no keys itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from textual import events
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

from eagle3chat.ui.glyphs import Glyphs

T = TypeVar("T")
WHEEL = 3  # rows


class RowList(Widget, Generic[T]):
    """Rows, one line each.

    Args:
        glyphs: For the sign before the chosen row.
        draw: The row of an item for so many cells.
        empty: What is said when there is none.
    """

    ALLOW_SELECT = False

    @dataclass
    class Chosen(Message):
        """Another row is the chosen one."""

    @dataclass
    class Opened(Message):
        """The chosen row was clicked again."""

    def __init__(self, glyphs: Glyphs, draw: Callable[[T, int], Content], empty: str, *, id: str) -> None:
        super().__init__(id=id)
        self._glyphs = glyphs
        self._draw = draw
        self._empty = empty
        self._rows: Sequence[T] = ()
        self._top = 0
        self.place = 0

    @property
    def chosen(self) -> T | None:
        """The item of the chosen row."""
        return self._rows[self.place] if self._rows else None

    def __len__(self) -> int:
        return len(self._rows)

    def __bool__(self) -> bool:
        return True  # a list without rows is a widget all the same

    def show(self, rows: Sequence[T], place: int = 0, empty: str | None = None) -> None:
        """Other rows."""
        self._rows = rows
        self._empty = self._empty if empty is None else empty
        self.go(place)

    def go(self, place: int) -> None:
        """Choose a row; the nearest there is."""
        self.place = max(0, min(place, len(self._rows) - 1))
        height = max(1, self.size.height)
        self._top = max(self.place - height + 1, min(self._top, self.place, max(0, len(self._rows) - height)))
        self.refresh()
        self.post_message(self.Chosen())

    def move(self, rows: int) -> None:
        """Choose a row further down or up."""
        self.go(self.place + rows)

    def page(self, pages: int) -> None:
        """As far as the rows in sight reach."""
        self.move(pages * max(1, self.size.height - 1))

    def render(self) -> Content:
        width, height = self.content_size
        if not self._rows:
            return Content.styled(self._empty, "$quiet").truncate(width, ellipsis=True)
        shown = self._rows[self._top : self._top + height]
        return Content("\n").join(self._line(self._top + i, row, width) for i, row in enumerate(shown))

    def _line(self, place: int, row: T, width: int) -> Content:
        here = place == self.place
        sign = f"{self._glyphs.prompt} " if here else "  "
        line = Content.assemble((sign, "$emphasis"), self._draw(row, width - len(sign))).truncate(width, pad=True)
        if not here:
            return line
        # The terminal's own colours cannot be mixed, and nobody knows what they are.
        return line.stylize("bold reverse" if self.app.current_theme.ansi else "bold $chosen-text on $chosen")

    def on_resize(self) -> None:
        self.go(self.place)

    def on_click(self, event: events.Click) -> None:
        place = self._top + event.y
        if place < len(self._rows):
            again = place == self.place and event.chain > 1
            self.go(place)
            if again:
                self.post_message(self.Opened())

    def on_mouse_scroll_down(self) -> None:
        self.move(WHEEL)

    def on_mouse_scroll_up(self) -> None:
        self.move(-WHEEL)
