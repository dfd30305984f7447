"""The first row: which pair is open and how much of its context is used."""

from __future__ import annotations

from textual.content import Content

from eagle3chat.engine.events import Info, Loading
from eagle3chat.ui.clean import clean_line
from eagle3chat.ui.glyphs import Glyphs
from eagle3chat.ui.widgets.line import Line, first_fitting, joined, spread


class Header(Line):
    """Model, backend, template; context used of its capacity."""

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__()
        self._glyphs = glyphs
        self._info: Info | None = None
        self._state = "starting"
        self._fraction: float | None = None
        self._used = 0

    def show_loading(self, event: Loading) -> None:
        """The pair is being opened."""
        self._info, self._state, self._fraction = None, event.stage, event.fraction
        self.refresh()

    def show_pair(self, info: Info) -> None:
        """The pair is open."""
        self._info = info
        self.refresh()

    def show_down(self, state: str) -> None:
        """There is no worker."""
        self._info, self._state, self._fraction = None, state, None
        self.refresh()

    def show_used(self, used: int) -> None:
        """Positions of the context in use."""
        if used != self._used:
            self._used = used
            self.refresh()

    def line(self, width: int) -> Content:
        dot = f" {self._glyphs.dot} "
        if self._info is None:
            left = joined([("eagle3chat", "bold"), (clean_line(self._state), "$quiet")], dot)
            percent = "" if self._fraction is None else f"{self._fraction * 100:.0f} %"
            return spread(left, Content.styled(percent, "$quiet"), width)
        info = self._info
        model = (clean_line(info.model), "bold")
        names = (name for name in (info.backend, info.device, info.dtype) if name not in ("", "none", info.model))
        machine = (clean_line(" ".join(names)), "$quiet")
        template = (clean_line(info.template), "$quiet")
        known = "capacity" not in info.unknown
        used = "not known" if self._used < 0 else str(self._used)
        short = f"{used} / {info.capacity} " if known else ""
        fill = (self._glyphs.level(max(0, self._used) / max(1, info.capacity)), "$spec-accepted")
        right = first_fitting(
            [
                Content.assemble((f"context {short}", "$quiet"), fill)
                if known
                else Content.styled("context not known", "$quiet"),
                Content.assemble((short, "$quiet"), fill) if known else Content(""),
            ],
            width - len(info.model) - 2,
        )
        lefts = [joined([model, machine, template], dot), joined([model, machine], dot), joined([model], dot)]
        return spread(first_fitting(lefts, width - right.cell_length - 2), right, width)
