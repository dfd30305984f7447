"""What of the screen a frame draws: the changed stretches of its rows, and no widget that they do not touch.

The toolkit's compositor has every widget drawn that is in sight, cuts each row where any widget begins or ends, and
moves the cursor to each cut. What comes out is the same, cell by cell.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from rich.console import Console
from textual._compositor import Compositor, CompositorUpdate
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

Piece = tuple[int, Strip]
"""Cells of a row, from a column on."""


class Stretches(CompositorUpdate):
    """Cells to be written.

    Args:
        rows: Pieces of each row by its number, from left to right.
    """

    def __init__(self, rows: dict[int, list[Piece]]) -> None:
        self.rows = rows

    def render_segments(self, console: Console) -> str:
        parts: list[str] = []
        for y, pieces in self.rows.items():
            at = -1
            for x, strip in pieces:
                if x != at:
                    parts.append(f"\x1b[{y + 1};{x + 1}H")
                parts.append(strip.render(console))
                at = x + strip.cell_length
        return "".join(parts)


class Composition(Compositor):
    """The toolkit's compositor with frames of its own."""

    def render_partial_update(self) -> Stretches | None:  # type: ignore[override]
        changed, screen = self._dirty_regions.copy(), self.size.region
        self._dirty_regions.clear()
        spans = self._regions_to_spans(region.intersection(screen) for region in changed)
        bare: dict[int, list[tuple[int, int]]] = {}  # of each row the stretches that nothing covers yet
        for y, x1, x2 in spans:
            bare.setdefault(y, []).append((x1, x2))
        rows: dict[int, list[Piece]] = {y: [] for y in bare}
        for widget, (region, clip) in self.visible_widgets.items():  # from the front to the back
            if not bare:
                break
            _paint(widget, region, region.intersection(clip), bare, rows)
        return Stretches(rows) if rows else None


def _paint(
    widget: Widget,
    region: Region,
    seen: Region,
    bare: dict[int, list[tuple[int, int]]],
    rows: dict[int, list[Piece]],
) -> None:
    """Cover the stretches where a widget is seen."""
    left, right = seen.column_span
    wanted = [y for y in seen.line_range if any(x1 < right and x2 > left for x1, x2 in bare.get(y, ()))]
    if not wanted:
        return
    first = wanted[0]
    crop = Region(left - region.x, first - region.y, right - left, wanted[-1] + 1 - first)
    strips = widget.render_lines(crop)
    for y in wanted:
        rest = _cover(rows[y], left, right, strips[y - first], bare[y])
        if rest:
            bare[y] = rest
        else:
            del bare[y]


def _cover(
    row: list[Piece], left: int, right: int, strip: Strip, stretches: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Put the strip, which is seen from `left` to `right`, onto stretches; what of them stays bare."""
    rest: list[tuple[int, int]] = []
    for x1, x2 in stretches:
        begin, end = max(x1, left), min(x2, right)
        if begin >= end:
            rest.append((x1, x2))
            continue
        insort(row, (begin, strip.crop(begin - left, end - left)), key=_column)
        rest += [(a, b) for a, b in ((x1, begin), (end, x2)) if a < b]
    return rest


def _column(piece: Piece) -> int:
    return piece[0]
