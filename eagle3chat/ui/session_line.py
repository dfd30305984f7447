"""A saved conversation as one row of a list, and what was found in it. Text only, no widget."""

from __future__ import annotations

from datetime import UTC, datetime

from textual.content import Content

from eagle3chat.transcript_index import END, MARK, Found
from eagle3chat.ui.clean import clean_line
from eagle3chat.ui.figures import plural, size

TITLE_CELLS = 22  # that a title keeps before anything beside it


def session_line(found: Found, width: int, now: datetime, current: str) -> Content:
    """Title at the left; model, turns, size and age at the right as far as there is room."""
    summary = found.summary
    title = clean_line(summary.title) or "(without a message)"
    age = age_of(summary.modified, now)
    turns, bytes_ = f"{plural(summary.turns, 'turn'):>9}", f"{size(summary.size):>8}"
    model = Content(clean_line(summary.model))
    beside: tuple[list[Content | str], ...] = (
        [_column(model, 26), turns, bytes_, f"{age:>10}"],
        [_column(model, 18), bytes_, f"{age:>10}"],
        [turns, f"{age:>10}"],
        [f"{age:>10}"],
    )
    rights = [Content("  ").join(columns) for columns in beside]
    right = next((right for right in rights if width - right.cell_length - 2 >= TITLE_CELLS), Content(""))
    mark = ("on screen  ", "$spec-accepted") if summary.id == current else ""
    room = width - right.cell_length - 2 if right else width
    left = Content.assemble(mark, title).truncate(room, ellipsis=True, pad=True)
    return Content.assemble(left, "  ", right.stylize("$quiet")) if right else left


def _column(text: Content, cells: int) -> Content:
    return text.truncate(cells, ellipsis=True, pad=True)


def age_of(modified: str, now: datetime) -> str:
    """How long ago, or the day."""
    try:
        at = datetime.fromisoformat(modified)
    except ValueError:
        return ""
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    minutes = (now - at).total_seconds() / 60
    if minutes < 1:
        return "now"
    if minutes < 60:
        return f"{minutes:.0f} min ago"
    if minutes < 24 * 60:
        return f"{minutes / 60:.0f} h ago"
    return at.astimezone().strftime("%Y-%m-%d")


def excerpt_line(found: Found | None) -> Content:
    """The words around the first hit, the hits bold."""
    if found is None or not found.excerpt:
        return Content("")
    parts: list[Content] = []
    for place, piece in enumerate(found.excerpt.split(MARK)):
        hit, _, rest = piece.partition(END) if place else ("", "", piece)
        parts += [Content.styled(clean_line(hit), "bold $spec-correction"), Content.styled(clean_line(rest), "$quiet")]
    return Content("").join(parts)
