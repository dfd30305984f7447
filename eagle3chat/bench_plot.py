"""A bench as an SVG file: what a pass costs by its rows, what the target accepts by place, what a chain gains.

Plain text, without a drawing library. It has its own background for light and for dark, and says with form and
figures what it says with colour. Knows figures only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from eagle3chat.bench import chain_name
from eagle3chat.bench_rows import RowCost, Spread
from eagle3chat.bench_summary import ChainSummary

HEIGHT, TOP, BOTTOM, MARGIN, GAP = 340, 106, 52, 44, 56
BAR, PAIR_BAR, STEP = 26, 18, 58
LEAST_PANEL = 270
STYLE = """\
svg{font-family:system-ui,sans-serif;font-size:12px}
.paper{fill:#ffffff}.text{fill:#1f2328}.soft{fill:#57606a}.grid{stroke:#d0d7de}.unit{stroke:#57606a}
.bar{fill:#7db3ea;stroke:#2f6fae}.open{fill:none;stroke:#57606a}.whisker{stroke:#1f2328}
.least{fill:#ffffff;stroke:#1f2328}.over{paint-order:stroke;stroke:#ffffff;stroke-width:4px}
@media (prefers-color-scheme:dark){
.paper{fill:#0d1117}.text{fill:#e6edf3}.soft{fill:#9da7b3}.grid{stroke:#30363d}.unit{stroke:#9da7b3}
.bar{fill:#2c5d92;stroke:#6cb0f5}.open{stroke:#9da7b3}.whisker{stroke:#e6edf3}
.least{fill:#0d1117;stroke:#e6edf3}.over{stroke:#0d1117}
}"""


@dataclass(frozen=True, slots=True)
class Bar:
    """A column of a panel: a value with what is around it."""

    name: str
    value: float
    label: str
    spread: Spread | None = None  # quartiles, drawn as a whisker
    beside: float | None = None  # a second value, drawn as an outline
    least: float | None = None  # the lowest one, drawn as a ring


@dataclass(frozen=True, slots=True)
class Panel:
    """Some columns over one scale, from 0."""

    title: str
    below: str  # what the names of the columns are
    legend: str
    bars: tuple[Bar, ...]
    unit: float | None = None  # a value with a line across, dashed


def draw(title: str, summaries: Sequence[ChainSummary], rows: Sequence[RowCost]) -> str:
    """The SVG document."""
    panels = [panel for panel in (cost(rows), acceptance(summaries), speedup(summaries)) if panel.bars]
    widths = [max(LEAST_PANEL, STEP * len(panel.bars)) for panel in panels]
    width = 2 * MARGIN + sum(widths) + GAP * max(0, len(panels) - 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}" height="{HEIGHT}"'
        f' role="img"><title>{escape(title)}</title><style>{STYLE}</style>',
        f'<rect class="paper" width="{width}" height="{HEIGHT}"/>',
        f'<text class="text" x="{MARGIN}" y="26" font-size="14">{escape(_fitted(title, width - 2 * MARGIN))}</text>',
    ]
    left = float(MARGIN)
    for panel, across in zip(panels, widths, strict=True):
        parts += _panel(panel, left, across)
        left += across + GAP
    return "\n".join([*parts, "</svg>"]) + "\n"


def cost(rows: Sequence[RowCost]) -> Panel:
    """verify(M) / verify(1), and the same of whole rounds; where verify is not timed apart, of rounds alone."""
    bars = []
    for row in rows:
        own, spread = row.verify_ratio, row.verify_ms
        value = own or row.round_ratio
        if value is None:
            continue
        around = None if own is None or spread is None else spread.times(own / spread.median)
        beside = None if own is None else row.round_ratio
        bars.append(Bar(str(row.rows), value, f"{value:.2f}", around, beside))
    timed = any(bar.beside is not None for bar in bars)
    legend = "filled: the target's pass; outline: the round" if timed else "the round"
    return Panel("Cost, in passes of one row", "rows of a pass", legend, tuple(bars), 1.0)


def acceptance(summaries: Sequence[ChainSummary]) -> Panel:
    """Accepted / judged at each place, of the longest fixed chain that was measured."""
    longest = max(summaries, key=lambda summary: summary.chain, default=None)  # AUTO is below all of them
    shares = () if longest is None else longest.acceptance
    bars = [Bar(str(place + 1), p, f"{p:.0%}") for place, p in enumerate(shares) if p is not None]
    legend = "" if longest is None else f"chain {chain_name(longest.chain)}"
    return Panel("Accepted of judged drafts", "place in the chain", legend, tuple(bars))


def speedup(summaries: Sequence[ChainSummary]) -> Panel:
    """Tokens a second against chain 0: the middle, the quartiles and the lowest of the prompts."""
    bars = [
        Bar(chain_name(s.chain), s.speedups.median, f"{s.speedups.median:.2f}", s.speedups, least=s.speedup_lowest)
        for s in summaries
        if s.speedups is not None and s.chain != 0
    ]
    title = "Tokens a second against chain 0"
    return Panel(title, "chain", "middle and quartiles of prompts; ring: lowest", tuple(bars), 1.0)


def _panel(panel: Panel, left: float, width: float) -> Iterator[str]:
    most = max(_most(bar) for bar in panel.bars)
    top = max(1.0, most * 1.08) if panel.unit is not None else 1.0
    scale = (HEIGHT - TOP - BOTTOM) / top
    floor = HEIGHT - BOTTOM
    yield _text("text", left, 52, panel.title, weight="600")
    yield _text("soft", left, 69, panel.legend)
    for value in _marks(top):
        y = floor - value * scale
        yield _line("grid", left, y, left + width, y)
        yield _text("soft", left - 6, y + 4, f"{value:.0%}" if panel.unit is None else f"{value:g}", anchor="end")
    if panel.unit is not None:
        y = floor - panel.unit * scale
        yield _line("unit", left, y, left + width, y, ' stroke-dasharray="5 4"')
    step = width / len(panel.bars)
    for place, bar in enumerate(panel.bars):
        yield from _column(bar, left + (place + 0.5) * step, floor, scale)
    yield _text("soft", left + width / 2, HEIGHT - 14, panel.below, anchor="middle")


def _most(bar: Bar) -> float:
    return max(bar.value, bar.beside or 0.0, bar.spread.high if bar.spread else 0.0)


def _marks(top: float) -> list[float]:
    """Three to six round values from 0 to the top."""
    step = next(step for step in (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 50.0, 1e6) if top / step <= 6)
    return [step * number for number in range(int(top / step) + 1)]


def _column(bar: Bar, middle: float, floor: float, scale: float) -> Iterator[str]:
    width = BAR if bar.beside is None else PAIR_BAR
    centre = middle if bar.beside is None else middle - width / 2 - 1
    title = f"<title>{escape(bar.name)}: {bar.value:.3f}</title>"
    yield _rect("bar", centre - width / 2, floor - bar.value * scale, width, bar.value * scale, title)
    if bar.beside is not None:
        title = f"<title>{escape(bar.name)}, the round: {bar.beside:.3f}</title>"
        yield _rect("open", middle + 1.5, floor - bar.beside * scale, width - 1, bar.beside * scale, title)
    if bar.spread is not None:
        low, high = floor - bar.spread.low * scale, floor - bar.spread.high * scale
        yield _line("whisker", centre, low, centre, high, ' stroke-width="1.5"')
        for y in (low, high):
            yield _line("whisker", centre - 4, y, centre + 4, y, ' stroke-width="1.5"')
    if bar.least is not None:
        yield f'<circle class="least" cx="{centre:.1f}" cy="{floor - bar.least * scale:.1f}" r="4" stroke-width="1.5"/>'
    above = floor - _most(bar) * scale - 6
    if bar.beside is not None:
        yield _text("soft over", middle, above, f"{bar.beside:.2f}", anchor="middle")
        above -= 14
    yield _text("text over", middle, above, bar.label, anchor="middle")
    yield _text("text", middle, floor + 16, bar.name, anchor="middle")


def _fitted(title: str, width: float) -> str:
    """As much of a title as the picture is wide, by an average letter."""
    room = int(width / 7.5)
    return title if len(title) <= room else f"{title[: room - 1]}…"


def _text(kind: str, x: float, y: float, text: str, anchor: str = "start", weight: str = "400") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text class="{kind}" {place}>{escape(text)}</text>'


def _line(kind: str, x1: float, y1: float, x2: float, y2: float, more: str = "") -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"{more}/>'


def _rect(kind: str, x: float, y: float, width: float, height: float, inside: str) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}">{inside}</rect>'
