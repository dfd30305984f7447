"""Two pictures of a reply's rounds, as SVG elements for a page: acceptance by place, accepted length by round.

Colours are classes that the page's style sheet defines. Knows counts, no text of a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from eagle3chat.engine.events import Round

MOST_BARS = 240  # of a picture over rounds: with more rounds a bar stands for several
HEIGHT = 96
LEFT, RIGHT, TOP, BOTTOM = 42, 6, 14, 20
PLACE_WIDTH = 56
NARROWEST = 300


@dataclass(frozen=True, slots=True)
class Places:
    """What became of the drafted tokens at each place of the chain."""

    drafted: tuple[int, ...]
    judged: tuple[int, ...]
    accepted: tuple[int, ...]

    @classmethod
    def of(cls, rounds: Sequence[Round]) -> Places:
        """Counted over rounds."""
        longest = max((len(r.drafted) for r in rounds), default=0)
        judged = [r.accepted + (r.rejected is not None) for r in rounds]
        return cls(
            tuple(sum(len(r.drafted) > i for r in rounds) for i in range(longest)),
            tuple(sum(j > i for j in judged) for i in range(longest)),
            tuple(sum(r.accepted > i for r in rounds) for i in range(longest)),
        )


def by_place(places: Places) -> str:
    """Accepted / judged at each place, a bar a place; empty when nothing was drafted."""
    if not places.judged:
        return ""
    width = max(NARROWEST, LEFT + RIGHT + PLACE_WIDTH * len(places.judged))
    parts = [*_axis(width, [(0.0, "0"), (0.5, "50 %"), (1.0, "100 %")])]
    for i, (judged, accepted) in enumerate(zip(places.judged, places.accepted, strict=True)):
        share = accepted / judged if judged else 0.0
        x = LEFT + i * PLACE_WIDTH + 8
        height = share * (HEIGHT - TOP - BOTTOM)
        title = f"place {i + 1}: {accepted} of {judged} judged accepted"
        middle = x + PLACE_WIDTH / 2 - 8
        parts.append(_bar(x, height, PLACE_WIDTH - 16, title))
        said = f"{i + 1}: {share * 100:.0f} %" if judged else f"{i + 1}: -"
        parts.append(_text(middle, HEIGHT - 6, said, "middle"))
    return _picture(width, "accepted of judged drafts by place in the chain", parts)


def by_round(rounds: Sequence[Round]) -> str:
    """Accepted tokens of each round, and above them the rejected and unreached; empty when nothing was drafted."""
    longest = max((len(r.drafted) for r in rounds), default=0)
    if not longest:
        return ""
    bins = list(_bins(rounds))
    step = max(2.0, min(12.0, 720 / len(bins)))
    width = max(NARROWEST, round(LEFT + RIGHT + step * len(bins)))
    scale = (HEIGHT - TOP - BOTTOM) / longest
    parts = [*_axis(width, [(0.0, "0"), (1.0, str(longest))])]
    for i, (first, accepted, drafted) in enumerate(bins):
        x = LEFT + i * step
        title = f"round {first + 1}: {accepted:.4g} of {drafted:.4g} drafted accepted"
        parts.append(_bar(x, drafted * scale, step * 0.8, title, "open"))
        parts.append(_bar(x, accepted * scale, step * 0.8, title))
    parts.append(_text(LEFT, HEIGHT - 6, "1", "start"))
    parts.append(_text(LEFT + step * len(bins), HEIGHT - 6, str(len(rounds)), "end"))
    return _picture(width, "accepted tokens of each round; pale: drafted", parts)


def _bins(rounds: Sequence[Round]) -> Iterator[tuple[int, float, float]]:
    """First round, mean accepted and mean drafted of as many rounds as a bar stands for."""
    size = -(-len(rounds) // MOST_BARS)
    for start in range(0, len(rounds), size):
        some = rounds[start : start + size]
        yield start, sum(r.accepted for r in some) / len(some), sum(len(r.drafted) for r in some) / len(some)


def _picture(width: int, title: str, parts: list[str]) -> str:
    head = f'<svg class="plot" role="img" viewBox="0 0 {width} {HEIGHT}" width="{width}" height="{HEIGHT}">'
    return f"{head}<title>{title}</title>{''.join(parts)}</svg>"


def _axis(width: int, marks: Sequence[tuple[float, str]]) -> Iterator[str]:
    for share, name in marks:
        y = HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
        yield f'<line class="grid" x1="{LEFT}" x2="{width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield _text(LEFT - 4, y + 3, name, "end")


def _bar(x: float, height: float, width: float, title: str, kind: str = "bar") -> str:
    y = HEIGHT - BOTTOM - height
    box = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect class="{kind}" {box}><title>{title}</title></rect>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'
