"""The conversation's scroll bar: that of the toolkit, drawn with a strip a kind of cell in place of one a row.

While a reply streams it moves with every frame.
"""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.scrollbar import ScrollBar, ScrollBarRender
from textual.strip import Strip


class Bar(ScrollBar):
    """A vertical scroll bar."""

    def fit(self, virtual: int, window: int) -> None:
        """Rows of all that there is and rows that are seen. Who calls it draws the bar in the same frame."""
        self.set_reactive(ScrollBar.window_virtual_size, virtual)
        self.set_reactive(ScrollBar.window_size, window)

    def render_lines(self, crop: Region) -> list[Strip]:
        drawn = self.render()
        assert isinstance(drawn, ScrollBarRender)
        style = drawn.style
        assert isinstance(style, Style)
        assert style.color is not None and style.bgcolor is not None
        bar = self.renderer.render_bar(
            size=self.size.height,
            virtual_size=drawn.virtual_size,
            window_size=drawn.window_size,
            position=drawn.position,
            thickness=self.size.width,
            back_color=style.bgcolor,
            bar_color=style.color,
        )
        cells = list(bar.segments)
        made: dict[int, Strip] = {}
        for cell in cells:
            if id(cell) not in made:
                made[id(cell)] = self._strip(cell)
        return [made[id(cell)].crop(crop.x, crop.right) for cell in cells[crop.y : crop.bottom]]

    def _strip(self, cell: Segment) -> Strip:
        strip = Strip([Segment(cell.text, self.visual_style.rich_style + (cell.style or Style()))], self.size.width)
        for each in self.get_line_filters():
            strip = strip.apply_filter(each, self.background_colors[1])
        return strip
