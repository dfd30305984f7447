"""What stands in an empty conversation: the pair, how far it is opened, and how to read the marks that it makes."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from eagle3chat.engine.events import Info, Loading
from eagle3chat.ui.clean import clean_line
from eagle3chat.ui.figures import size
from eagle3chat.ui.glyphs import Glyphs
from eagle3chat.ui.legend import IN_REPLY, instead, kinds
from eagle3chat.ui.widgets.lane import STYLES

BAR = 32  # cells


class Welcome(Static):
    """The first thing in a conversation. It scrolls away with it."""

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(markup=False)
        self._glyphs = glyphs
        self._info: Info | None = None  # the pair that was open last
        self._state = Content.styled("starting", "$quiet")

    def on_mount(self) -> None:
        self._draw()

    def show_loading(self, event: Loading) -> None:
        """The pair is being opened."""
        stage = clean_line(event.stage)
        done, left = self._glyphs.progress(event.fraction or 0.0, BAR)
        percent = f"  {event.fraction * 100:.0f} %" if event.fraction is not None else ""
        self._state = Content.assemble((done, "$spec-accepted"), (left, "$hairline"), (f"{percent}  {stage}", "$quiet"))
        self._draw()

    def show_pair(self, info: Info) -> None:
        """The pair is open."""
        self._info = info
        dot = f" {self._glyphs.dot} "
        draft = info.draft or ("draft not known" if "draft" in info.unknown else "no draft")
        parts = [draft, f"chain 0 to {info.max_chain}" if info.max_chain else info.unavailable]
        if info.load_seconds:
            parts.append(f"opened in {info.load_seconds:.1f} s")
        if info.memory_bytes:
            parts.append(size(info.memory_bytes))
        self._state = Content.styled(dot.join(clean_line(part) for part in parts if part), "$quiet")
        self._draw()

    def show_down(self) -> None:
        """There is no worker."""
        self._state = Content.styled("not open", "$quiet")
        self._draw()

    def _draw(self) -> None:
        lines = [Content.assemble(("eagle3chat", "bold")), self._state, Content("")]
        for kind in kinds(self._info, self._glyphs):
            if kind.kind in IN_REPLY:
                name = Content.styled(kind.kind, STYLES[kind.kind])
                lines.append(Content.assemble(name, " " * (13 - name.cell_length), (kind.meaning, "$quiet")))
        if other := instead(self._info):
            lines.append(Content.styled(other, "$quiet"))
        self.update(Content("\n").join(lines))
