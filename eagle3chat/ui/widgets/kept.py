"""A widget whose rows stay as they were drawn. The toolkit dresses and filters the rows of all that is seen in each
frame, also where a reply that grows has only moved them.
"""

from __future__ import annotations

from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget


class Kept(Widget):
    """A widget that keeps its last rows until it is drawn anew or looks different."""

    _drawn_rows: tuple[Region, list[Strip]] | None = None  # where in the widget, and how they are drawn

    def render_lines(self, crop: Region) -> list[Strip]:
        if self._drawn_rows is None or self._drawn_rows[0] != crop:
            self._drawn_rows = (crop, super().render_lines(crop))
        return self._drawn_rows[1]

    def _set_dirty(self, *regions: Region) -> None:
        self._drawn_rows = None
        super()._set_dirty(*regions)

    def notify_style_update(self) -> None:
        self._drawn_rows = None
        super().notify_style_update()
