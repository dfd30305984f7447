"""Lines of styled text, broken into rows that hang under their lead. One widget, however many lines.

Only rows that are seen are drawn, and the layout asks for a number of rows alone. The toolkit draws a list with four
widgets an item and code as one text that is measured whole: of a hundred items or lines each took half a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.segment import Segment
from textual.content import Content
from textual.geometry import Size
from textual.reactive import Reactive
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style

from eagle3chat.ui.widgets.kept import Kept
from eagle3chat.ui.wrap import row_starts

NARROWEST = 8  # cells that a row has at least; deeper leads are cut off


@dataclass(slots=True)
class HungLine:
    """A line whose rows after the first begin below the text behind its lead."""

    lead: str
    text: Content
    rows: list[int] = field(default_factory=list)  # offsets in `text` where its rows begin


class Rows(Kept):
    """Lines of text. Give it clean text: it is drawn as it is.

    Args:
        lines: From the first to the last.
    """

    LEAD = "$quiet"  # style of a lead
    LEAD_IS_TEXT = True  # to be selected and copied
    ALLOW_SELECT = True

    virtual_size: Reactive[Size] = Reactive(Size(0, 0), repaint=False)  # it does not scroll: no second layout for it

    def __init__(self, lines: Sequence[HungLine]) -> None:
        super().__init__()
        self._lines = list(lines)
        self._places: list[tuple[int, int]] = []  # of each row: line, row in the line
        self._width = 0

    @property
    def text(self) -> str:
        """All of it."""
        return "\n".join(line.lead * self.LEAD_IS_TEXT + line.text.plain for line in self._lines)

    @property
    def base(self) -> Style:
        """The style of text and of what is behind it."""
        return self.visual_style

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        if width != self._width:
            self._break(width)
        return len(self._places)

    def _break(self, width: int) -> None:
        self._width = width
        self._places = []
        for number, line in enumerate(self._lines):
            room = max(NARROWEST, width - cell_len(line.lead))
            line.rows = [0] if line.text.cell_length <= room else row_starts(line.text.plain, room)
            self._places.extend((number, row) for row in range(len(line.rows)))

    def render_line(self, y: int) -> Strip:
        width, base = self.size.width, self.base
        if y >= len(self._places):
            return Strip.blank(width, base.rich_style)
        number, row = self._places[y]
        line = self._lines[number]
        start = line.rows[row]
        end = line.rows[row + 1] if row + 1 < len(line.rows) else len(line.text)
        lead = line.lead if row == 0 else " " * cell_len(line.lead)
        first = len(line.lead) * self.LEAD_IS_TEXT + start
        text = self._strip(self._selected(line.text[start:end], number, first), base).apply_offsets(first, number)
        if row == 0 and self.LEAD_IS_TEXT:
            content = self._selected(Content.styled(lead, self.LEAD), number, 0)
            before = self._strip(content, base).apply_offsets(0, number)
        else:
            before = self._strip(Content(lead), base)
        return Strip.join([before, text]).crop(0, width).extend_cell_length(width, base.rich_style)

    def _strip(self, content: Content, base: Style) -> Strip:
        drawn = content.render(base, end="", parse_style=self._get_style)
        return Strip([Segment(text, (base + style).rich_style) for text, style in drawn if text])

    def _selected(self, content: Content, number: int, first: int) -> Content:
        """The content, which begins at an offset of a line, with what is selected of it in the selection's style."""
        selection = self.text_selection
        span = selection.get_span(number) if selection is not None else None
        if span is None:
            return content
        last = first + len(content) if span[1] == -1 else span[1]
        start, end = max(span[0] - first, 0), min(last - first, len(content))
        if start >= end:
            return content
        return content.stylize(self.screen.get_visual_style("screen--selection"), start, end)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        return selection.extract(self.text), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()
