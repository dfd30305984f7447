"""Plain text that grows, each stretch in the style of its kind of token.

The work of an addition is proportional to the addition: only the last row is broken anew, only changed rows are
drawn, and the layout runs only when a row was added.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter
from textual.geometry import Region, Size
from textual.reactive import Reactive
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

from eagle3chat.ui.marks import Kind, Piece
from eagle3chat.ui.wrap import row_starts

BLANK_ROW = -1  # a row of padding, or one that a text has not grown into yet


@dataclass(slots=True)
class _Line:
    """A line of text up to a newline, and where its kinds begin."""

    text: str = ""
    starts: list[int] = field(default_factory=list)  # offsets, ascending, the first 0
    kinds: list[Kind] = field(default_factory=list)  # as long as `starts`
    rows: list[int] = field(default_factory=lambda: [0])

    def add(self, kind: Kind, text: str) -> None:
        if text and (not self.kinds or self.kinds[-1] != kind):
            self.starts.append(len(self.text))
            self.kinds.append(kind)
        self.text += text

    def pieces(self, start: int, end: int) -> Iterable[Piece]:
        """The stretches between two offsets."""
        at = bisect_right(self.starts, start) - 1
        while start < end:
            stop = min(end, self.starts[at + 1]) if at + 1 < len(self.starts) else end
            yield Piece(self.kinds[at], self.text[start:stop])
            start, at = stop, at + 1


class MarkedText(Widget):
    """Text in pieces. Give it clean text: it is drawn as it is.

    Args:
        pieces: What it begins with.
        step: It grows by so many rows at once. A layout with all that it moves is what a row costs.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {"marked--accepted", "marked--correction", "marked--bonus", "marked--plain"}
    ALLOW_SELECT = True

    # Of a widget that does not scroll it is its size, which the layout has just set: it draws all of it.
    virtual_size: Reactive[Size] = Reactive(Size(0, 0), repaint=False)

    def __init__(self, pieces: Iterable[Piece] = (), *, step: int = 1, classes: str | None = None) -> None:
        super().__init__(classes=classes)
        self._step = step
        self._lines: list[_Line] = [_Line()]
        self._places: list[tuple[int, int]] = []  # of each row: line, row in the line
        self._width = 0
        self._styles_of_kinds: dict[str, Style] = {}
        self._strips: dict[int, Strip] = {}  # of rows, as they were drawn: a text that grows is drawn whole
        self._look: tuple[Color, tuple[LineFilter, ...]] | None = None  # background and filters of these
        self.append(pieces)

    @property
    def text(self) -> str:
        """All of it."""
        return "\n".join(line.text for line in self._lines)

    def append(self, pieces: Iterable[Piece]) -> None:
        """Add text at the end."""
        old_rows, first = len(self._places), len(self._lines) - 1
        for piece in pieces:
            head, *rest = piece.text.split("\n")
            self._lines[-1].add(piece.kind, head)
            for text in rest:
                self._lines.append(_Line())
                self._lines[-1].add(piece.kind, text)
        if not self._width:
            return
        while self._places and self._places[-1][0] >= first:
            self._places.pop()
        for row in range(len(self._places), old_rows):
            self._strips.pop(row, None)
        for number in range(first, len(self._lines)):
            self._break(number)
        if self._height(len(self._places)) != self._height(old_rows):
            self.refresh(layout=True)
        else:
            top = max(0, old_rows - 1)
            self.refresh(Region(0, top, self._width, max(1, len(self._places) - top)))

    def cut(self, count: int) -> list[Piece]:
        """Take the first `count` characters away and return them. A newline counts as one."""
        taken: list[Piece] = []
        while count > 0:
            line = self._lines[0]
            taken.extend(line.pieces(0, min(count, len(line.text))))
            if count <= len(line.text):
                rest = _Line()
                for piece in line.pieces(count, len(line.text)):
                    rest.add(piece.kind, piece.text)
                self._lines[0] = rest
                break
            taken.append(Piece("plain", "\n"))
            count -= len(line.text) + 1
            del self._lines[0]
            if not self._lines:
                self._lines.append(_Line())
                break
        self._rebreak(self._width)
        self.refresh(layout=True)
        return taken

    def _break(self, number: int) -> None:
        """Break a line into rows, from its last known row on."""
        line = self._lines[number]
        last = line.rows.pop()
        line.rows.extend(row_starts(line.text, self._width, last))
        self._places.extend((number, row) for row in range(len(line.rows)))

    def _rebreak(self, width: int) -> None:
        self._width, self._places = width, []
        self._strips.clear()
        if width:
            for number, line in enumerate(self._lines):
                line.rows = [0]
                self._break(number)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        if width != self._width:
            self._rebreak(width)
        return self._height(len(self._places))

    def _height(self, rows: int) -> int:
        return -(-rows // self._step) * self._step

    def notify_style_update(self) -> None:
        self._styles_of_kinds.clear()
        self._strips.clear()
        super().notify_style_update()

    def _style(self, kind: Kind) -> Style:
        style = self._styles_of_kinds.get(kind)
        if style is None:
            style = self.get_component_rich_style(f"marked--{kind}")
            self._styles_of_kinds[kind] = style
        return style

    def render_lines(self, crop: Region) -> list[Strip]:
        """Rows with the padding around them. The toolkit would dress each row, known or not, in every frame."""
        look = (self.background_colors[1], tuple(self.get_line_filters()))
        if look != self._look:
            self._look = look
            self._strips.clear()
        top, known, count = self.gutter.top, self._strips, len(self._places)
        rows = [y - top if 0 <= y - top < count else BLANK_ROW for y in crop.line_range]
        for y in rows:
            if y not in known:
                known[y] = self._dressed(self._drawn(*self._places[y]) if y != BLANK_ROW else None, *look)
        if crop.column_span == (0, self.outer_size.width):
            return [known[y] for y in rows]
        return [known[y].crop(crop.x, crop.right) for y in rows]

    def _dressed(self, strip: Strip | None, background: Color, filters: Iterable[LineFilter]) -> Strip:
        """A row from edge to edge; None: a blank one."""
        around = Style(bgcolor=background.rich_color)
        gutter, width = self.gutter, self.outer_size.width
        if strip is None:
            strip = Strip.blank(width, around)
        else:
            sides = (Segment(" " * gutter.left, around), *strip, Segment(" " * gutter.right, around))
            strip = Strip([segment for segment in sides if segment.text], width)
        for each in filters:
            strip = strip.apply_filter(each, background)
        return strip

    def render_line(self, y: int) -> Strip:
        """A row by itself, each stretch with its offset in the text for who selects."""
        if y >= len(self._places):
            return Strip.blank(self.size.width, self._style("plain"))
        return self._drawn(*self._places[y], offsets=True)

    def _drawn(self, number: int, row: int, offsets: bool = False) -> Strip:
        """A row. (To make a strip of a strip costs more.)"""
        line = self._lines[number]
        start = line.rows[row]
        end = line.rows[row + 1] if row + 1 < len(line.rows) else len(line.text)
        segments: list[Segment] = []
        at, cells = start, 0
        for piece in line.pieces(start, end):
            style = self._style(piece.kind)
            if offsets:
                style += Style.from_meta({"offset": (at, number)})
            segments.append(Segment(piece.text, style))
            at, cells = at + len(piece.text), cells + cell_len(piece.text)
        width = self.size.width
        if cells < width:
            segments.append(Segment(" " * (width - cells), self._style("plain")))
        strip = Strip(segments, max(cells, width))
        return self._selected(strip, number, start, end).crop(0, width)

    def _selected(self, strip: Strip, number: int, start: int, end: int) -> Strip:
        """The row with the selected part in the selection's style."""
        selection = self.text_selection
        span = selection.get_span(number) if selection is not None else None
        if span is None:
            return strip
        first, last = span[0], end if span[1] == -1 else span[1]
        first, last = max(first, start), min(last, end)
        if first >= last:
            return strip
        text = self._lines[number].text
        left = Strip([Segment(text[start:first])]).cell_length
        right = left + Strip([Segment(text[first:last])]).cell_length
        style = self.screen.get_component_rich_style("screen--selection")
        before, middle, after = strip.divide([left, right, strip.cell_length])
        return Strip.join([before, middle.apply_style(style), after])

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        return selection.extract(self.text), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        self._strips.clear()
        self.refresh()
