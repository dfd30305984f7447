"""A block of code: a surface of its own, long lines broken so that nothing is out of sight.

Colours come behind the text, in slices of a few milliseconds. The row above the code names its language, and copies
it when it is clicked.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

from textual import events
from textual.content import Content
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style

from eagle3chat.ui.code_colours import CodeColours
from eagle3chat.ui.messages import CopyWanted
from eagle3chat.ui.widgets.line import spread
from eagle3chat.ui.widgets.rows import HungLine, Rows

SLICE = 1500  # characters that get their colours at once
SLICE_SECONDS = 0.03  # between two slices
INDENT = "  "
COPY = "copy"


class Code(Rows):
    """Give it clean text.

    Args:
        code: Without the newline at its end.
        language: As the model named it, or nothing.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {"code--surface"}
    LEAD_IS_TEXT = False

    def __init__(self, code: str, language: str) -> None:
        blank = HungLine(INDENT, Content(""))
        super().__init__([blank, *(HungLine(INDENT, Content(line)) for line in code.split("\n")), blank])
        self.code = code
        self._language = language
        self._coloured_for: tuple[bool, bool] | None = None

    @property
    def base(self) -> Style:
        return self.get_visual_style("code--surface")

    def on_mount(self) -> None:
        self._colour()

    def render_line(self, y: int) -> Strip:
        if y:
            return super().render_line(y)
        width, base = self.size.width, self.base
        head = spread(Content(f"{INDENT}{self._language}"), Content(f"{COPY}{INDENT}"), width).stylize("$quiet")
        return self._strip(head, base).crop(0, width).extend_cell_length(width, base.rich_style)

    def on_click(self, event: events.Click) -> None:
        if event.y - self.gutter.top == 0:
            event.stop()
            self.post_message(CopyWanted("the code", self.code))

    def notify_style_update(self) -> None:
        super().notify_style_update()
        if self.is_mounted:
            self._colour()

    def _colour(self) -> None:
        """Begin with the colours, unless they are those of this kind of theme already."""
        kind = (self.app.native_ansi_color, self.app.current_theme.dark)
        if kind != self._coloured_for:
            self._coloured_for = kind
            self.run_worker(self._paint(*kind), group="colours", name="colours", exclusive=True)

    async def _paint(self, ansi: bool, dark: bool) -> None:
        for line in self._lines:
            line.text = line.text.without_spans
        # To read the rules of a language takes 20 ms.
        colours = await asyncio.to_thread(CodeColours, self.code, self._language, ansi, dark)
        while not colours.over:
            for number, spans in colours.step(SLICE).items():
                line = self._lines[number + 1]
                line.text = line.text.add_spans(spans)
            await asyncio.sleep(SLICE_SECONDS)
        self.refresh()

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        return selection.extract(self.text).strip("\n"), "\n"
