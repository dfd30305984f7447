"""The picture of a bench: what is drawn where, that texts have room, and that it needs no colour."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import combinations
from pathlib import Path

import pytest

from eagle3chat.bench import AUTO
from eagle3chat.bench_plot import acceptance, cost, draw, speedup
from eagle3chat.bench_rows import RowCost, Spread
from eagle3chat.bench_summary import ChainSummary
from eagle3chat.cli import main

SVG = "{http://www.w3.org/2000/svg}"
LETTER = 0.53  # of the font size: a letter of a wide sans-serif (DejaVu Sans) on average; bold ones are wider


def summary(chain: int, middle: float | None, shares: tuple[float | None, ...] = ()) -> ChainSummary:
    spread = None if middle is None else Spread(middle, middle - 0.2, middle + 0.5)
    values = dict.fromkeys(ChainSummary.__dataclass_fields__)
    values |= {"chain": chain, "acceptance": shares, "speedups": spread, "slower": (), "differences": ()}
    values["speedup_lowest"] = None if middle is None else middle - 0.4
    return ChainSummary(**values)


def row(rows: int, ratio: float, *, timed: bool = True) -> RowCost:
    ms = Spread(4.0 * ratio, 3.9 * ratio, 4.2 * ratio)
    return RowCost(rows, 9, ms, round(ratio * 1.2, 6), ms if timed else None, ratio if timed else None, None, None)


FEW = ([summary(0, 1.0), summary(3, 1.3, (0.5, 0.25, None))], [row(1, 1.0), row(4, 1.5)])
MANY = (
    [
        summary(0, 1.0),
        *(summary(k, 0.9 + k / 2, tuple(1.0 for _ in range(k))) for k in range(1, 9)),
        summary(AUTO, 2.0),
    ],
    [row(m, 1.0 + m / 3) for m in range(1, 10)],
)
SLOW = ([summary(0, 1.0), summary(1, 0.5, (0.0,))], [row(1, 1.0), row(2, 30.0)])


def texts(svg: str) -> list[tuple[float, float, float, str]]:
    """Left, right, baseline and text of each."""
    found = []
    for text in ET.fromstring(svg).iter(f"{SVG}text"):
        x, y, said = float(text.get("x", "0")), float(text.get("y", "0")), text.text or ""
        bold = 1.15 if text.get("font-weight") == "600" else 1.0
        width = LETTER * bold * float(text.get("font-size", "12")) * len(said)
        left = x - {"start": 0.0, "middle": 0.5, "end": 1.0}[text.get("text-anchor", "start")] * width
        found.append((left, left + width, y, said))
    return found


@pytest.mark.parametrize("figures", [FEW, MANY, SLOW], ids=["few", "many", "slow"])
def test_no_text_leaves_the_picture_or_meets_another(figures: tuple[list[ChainSummary], list[RowCost]]) -> None:
    svg = draw("a title that says which pair on which machine, " * 3, *figures)
    root = ET.fromstring(svg)
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    for left, right, y, said in texts(svg):
        assert left >= 0 and right <= width and 12 <= y <= height, said
    for one, other in combinations(texts(svg), 2):
        apart = one[1] <= other[0] or other[1] <= one[0] or abs(one[2] - other[2]) >= 12
        assert apart, (one, other)
    for rect in list(root.iter(f"{SVG}rect"))[1:]:
        assert float(rect.get("y", "-1")) >= 0 and float(rect.get("height", "-1")) >= 0


def test_every_value_is_written_beside_its_column() -> None:
    said = {text for *_, text in texts(draw("t", *FEW))}
    assert {"1.00", "1.50", "1.80", "50%", "25%", "1.30", "chain 3"} <= said


def test_panels_have_what_was_measured_and_nothing_else() -> None:
    summaries, rows = FEW
    assert [(bar.name, bar.value, bar.beside) for bar in cost(rows).bars] == [("1", 1.0, 1.2), ("4", 1.5, 1.8)]
    assert [(bar.name, bar.value) for bar in acceptance(summaries).bars] == [("1", 0.5), ("2", 0.25)]
    (bar,) = speedup(summaries).bars
    assert (bar.name, bar.value, bar.least) == ("3", 1.3, pytest.approx(0.9))
    assert acceptance([*summaries, summary(AUTO, 1.0, (0.9,))]).legend == "chain 3"
    assert not speedup([summary(3, None)]).bars


def test_rounds_stand_for_passes_that_are_not_timed() -> None:
    panel = cost([row(1, 1.0, timed=False), row(4, 1.5, timed=False)])
    assert panel.legend == "the round"
    assert [(bar.value, bar.beside, bar.spread) for bar in panel.bars] == [(1.2, None, None), (1.8, None, None)]


def test_the_whisker_is_the_spread_in_the_unit_of_the_column() -> None:
    (_, bar) = cost(FEW[1]).bars
    assert bar.spread is not None
    assert (bar.spread.low, bar.spread.high) == (pytest.approx(1.5 * 3.9 / 4), pytest.approx(1.5 * 4.2 / 4))


def test_light_and_dark_have_the_same_classes_and_readable_text() -> None:
    svg = draw("t", *FEW)
    style = re.search(r"<style>(.*?)</style>", svg, re.S)
    assert style is not None
    light, dark = style[1].split("@media (prefers-color-scheme:dark)")
    for scheme in (light, dark):
        colours = dict(re.findall(r"\.(\w+)\{fill:(#\w{6})", scheme))
        paper = luminance(colours["paper"])
        for kind in ("text", "soft"):
            ink = luminance(colours[kind])
            contrast = (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05)
            assert contrast > 4.5, (kind, contrast)  # WCAG 2.2, 1.4.3
        assert 'class="bar"' in svg and 'class="open"' in svg


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2.2 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_command_draws_what_it_tells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    file = tmp_path / "bench.svg"
    argv = ["bench", "--backend", "scripted", "--chains", "0,2", "--limit", "2", "--max-new-tokens", "16"]
    assert main([*argv, "--plot", str(file)]) == 0
    capsys.readouterr()
    said = [text for *_, text in texts(file.read_text())]
    assert "Accepted of judged drafts" in said and "Tokens a second against chain 0" in said
    assert main([*argv, "--plot", str(tmp_path / "none" / "bench.svg")]) == 2
    captured = capsys.readouterr()
    assert "no directory" in captured.err and not captured.out  # before anything is measured
