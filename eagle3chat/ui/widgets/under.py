"""The quiet line under a reply. Where it is too long it breaks between its parts, never within one."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from textual.content import Content
from textual.geometry import Size

from eagle3chat.ui.widgets.kept import Kept


class Under(Kept):
    """Parts with a separator between them."""

    def __init__(self, parts: Sequence[str], separator: str) -> None:
        super().__init__(classes="under")
        self._parts = parts
        self._separator = separator

    def _rows(self, width: int) -> list[str]:
        rows = [self._parts[0]]
        for part in self._parts[1:]:
            longer = f"{rows[-1]}{self._separator}{part}"
            if cell_len(longer) <= width:
                rows[-1] = longer
            else:
                rows.append(part)
        return rows

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._rows(width))

    def render(self) -> Content:
        return Content("\n".join(self._rows(self.content_size.width)))
