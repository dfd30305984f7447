"""A saved conversation as one row of a list, and what was found in it. Text only, no widget."""

from __future__ import annotations

from datetime import UTC, datetime

from textual.content import Content

from eagle3chat.transcript_index import END, MARK, Found
from eagle3chat.ui.clean import clean_line
from eagle3chat.ui.figures import plural, size

TITLE_CELLS = 24  # that a title keeps before anything beside it


def session_line(found: Found, width: int, now: datetime, current: str) -> Content:
    """Title at the left; model, turns, size and age at the right as far as there is room."""
    summary = found.summary
    title = clean_line(summary.title) or "(without a message)"
    age = age_of(summary.modified, now)
    turns = plural(summary.turns, "turn")
    beside = [f"{clean_line(summary.model)[:26]}  {turns:>8}  {size(summary.size):>8}  {age:>10}", age]
    beside.insert(1, f"{turns:>8}  {age:>10}")
    right = next((text for text in beside if width - len(text) - 2 >= TITLE_CELLS), "")
    room = width - Content(right).cell_length - 2 if right else width
    mark = ("on screen  ", "$spec-accepted") if summary.id == current else ""
    left = Content.assemble(mark, title).truncate(room, ellipsis=True)
    gap = " " * max(0, width - left.cell_length - Content(right).cell_length)
    return Content.assemble(left, gap, (right, "$quiet"))


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
