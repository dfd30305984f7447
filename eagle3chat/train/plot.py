"""A run's curves as an SVG file: the loss of each step, and the acceptance by place on what was held out.

Plain text, without a drawing library; grey lines and text that read on light and dark. Knows no tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from eagle3chat.train.journal import Entry, Measurement, Update

WIDTH, HEIGHT, MARGIN, GAP = 860, 320, 48, 60
COLOURS = ("#2a78c8", "#d9822b", "#2e9e62", "#a05bbf", "#c8423f", "#7a7a7a")
TEXT = "#808080"
POINTS = 300  # of a line at most; updates between two are averaged

Point = tuple[float, float]


def draw(entries: Sequence[Entry], title: str) -> str:
    """The SVG document."""
    updates = [e for e in entries if isinstance(e, Update)]
    measured = [e for e in entries if isinstance(e, Measurement)]
    panel = (WIDTH - 2 * MARGIN - GAP) / 2
    depth = len(updates[0].losses) if updates else 0
    losses = [_averaged([(u.number, u.losses[step]) for u in updates]) for step in range(depth)]
    places = len(measured[0].rounds.judged) if measured else 0
    accepted = [[(m.number, m.rounds.acceptance[place]) for m in measured] for place in range(places)]
    tau = f", tau {measured[-1].rounds.tau:.3f}" if measured else ""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
        f' font-size="12" fill="{TEXT}">',
        f'<text x="{MARGIN}" y="20" font-size="14">{escape(title)}</text>',
        *_panel(MARGIN, panel, "loss by step", [f"step {i + 1}" for i in range(depth)], losses),
        *_panel(
            MARGIN + panel + GAP,
            panel,
            f"accepted of judged, held out{tau}",
            [f"place {i + 1}" for i in range(places)],
            accepted,
        ),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _averaged(points: Sequence[Point]) -> list[Point]:
    size = -(-len(points) // POINTS) or 1
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]


def _panel(left: float, width: float, title: str, names: Sequence[str], lines: Sequence[Sequence[Point]]) -> list[str]:
    top, bottom = 64, HEIGHT - MARGIN
    parts = [f'<text x="{left:.0f}" y="44">{escape(title)}</text>']
    points = [point for line in lines for point in line]
    if not points:
        return [*parts, f'<text x="{left:.0f}" y="{top + 20}">nothing yet</text>']
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    across, up = (last - first) or 1.0, (high - low) or 1.0

    def place(point: Point) -> str:
        x, y = point
        return f"{left + (x - first) / across * width:.1f},{bottom - (y - low) / up * (bottom - top):.1f}"

    for share in (0.0, 0.5, 1.0):
        y = bottom - share * (bottom - top)
        parts.append(
            f'<path d="M{left:.0f} {y:.0f}H{left + width:.0f}" stroke="{TEXT}" stroke-opacity="0.3"/>'
            f'<text x="{left - 6:.0f}" y="{y + 4:.0f}" text-anchor="end">{low + share * up:.2f}</text>'
        )
    parts.append(f'<text x="{left:.0f}" y="{bottom + 18}">{first:.0f}</text>')
    parts.append(f'<text x="{left + width:.0f}" y="{bottom + 18}" text-anchor="end">{last:.0f} updates</text>')
    for index, (name, line) in enumerate(zip(names, lines, strict=True)):
        colour = COLOURS[index % len(COLOURS)]
        parts.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{" ".join(map(place, line))}"/>'
            f'<text x="{left + 70 * index:.0f}" y="{HEIGHT - 8}" fill="{colour}">{escape(name)}</text>'
        )
    return parts
