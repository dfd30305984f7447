"""Rows never grow out of their width, whatever is in them, and glyphs are one cell wide."""

from __future__ import annotations

from dataclasses import replace

import pytest
from driving import CONTROLS
from fake_worker import INFO, finished, rounds_of, token
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from eagle3chat.engine.events import Round
from eagle3chat.ui.figures import size
from eagle3chat.ui.glyphs import ASCII, UNICODE, pick_glyphs
from eagle3chat.ui.tally import Tally
from eagle3chat.ui.widgets.header import Header
from eagle3chat.ui.widgets.keys import Keys
from eagle3chat.ui.widgets.lane import legend, round_row
from eagle3chat.ui.widgets.meter import Meter
from eagle3chat.ui.widgets.under import Under

TOKENS = st.lists(st.text(alphabet="ab 字😀\n\t\x1b\u0301", min_size=0, max_size=30), min_size=1, max_size=9)
WIDTHS = st.integers(20, 200)


def round_with(texts: list[str], accepted: int) -> Round:
    tokens = tuple(token(text, True) for text in texts[:-1])
    accepted = min(accepted, len(tokens))
    kind = "plain" if not tokens else "bonus" if accepted == len(tokens) else "correction"
    return Round(12345, 9, len(tokens), 1.0, tokens, accepted, token(texts[-1]), kind, (), "", 12.3456)


@given(TOKENS, st.integers(0, 9), st.integers(0, 99), WIDTHS, st.sampled_from([UNICODE, ASCII]))
def test_a_round_fits_its_row(texts, accepted, skipped, width, glyphs):
    row = round_row(round_with(texts, accepted), skipped, width, glyphs)
    assert "\n" not in row.plain
    assert "\x1b" not in row.plain
    if width >= 60:
        assert row.cell_length <= width


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_each_fate_has_its_sign(glyphs):
    row = round_row(round_with([" a", " b", " c", " d"], 1), 0, 100, glyphs).plain
    space = "_" if glyphs.ascii_only else "·"
    assert f"{space}a {glyphs.rejected}{space}b ({space}c)" in row
    assert f"{glyphs.correction} {space}d" in row
    assert "1/3" in row
    assert f"{glyphs.bonus} {space}d" in round_row(round_with([" a", " b", " c", " d"], 3), 0, 100, glyphs).plain
    assert all(sign in legend(glyphs).plain for sign in (glyphs.rejected, glyphs.correction, glyphs.bonus))


@given(st.integers(38, 200), st.integers(0, 6), st.sampled_from([UNICODE, ASCII]))
def test_the_meter_fits_and_keeps_the_chain_and_the_speed(width, chain, glyphs):
    meter = Meter(glyphs, CONTROLS)
    tally = Tally()
    for round_ in rounds_of([" w"] * 40, chain=chain):
        tally.add(round_)
    meter.show_controls(replace(CONTROLS, chain=chain), INFO)
    meter.show_tally(tally)
    line = meter.line(width)
    assert line.cell_length <= width
    assert ("chain off" if chain == 0 else f"chain {chain}") in line.plain
    assert "tok/s" in line.plain


@given(st.integers(24, 200))
def test_header_and_keys_fit(width):
    header, keys = Header(UNICODE), Keys()
    header.show_pair(INFO)
    assert header.line(width).cell_length <= width
    assert "SmolLM2" in header.line(width).plain
    assert keys.line(width).cell_length <= max(width, 14)


def test_the_footer_keeps_four_keys_at_eighty_columns():
    keys = Keys()
    assert [key in keys.line(80).plain for key in ("F7-F9", "ctrl+q", "F1", "ctrl+p")] == [True] * 4
    keys.show_replying(True)
    assert [key in keys.line(80).plain for key in ("F7-F9", "Esc", "F1", "ctrl+p")] == [True] * 4
    assert "Esc stop" in keys.line(20).plain


@given(st.integers(10, 120))
def test_the_line_under_a_reply_breaks_between_its_parts(width):
    parts = ["75 tokens", "33 rounds", "tau 2.27", "41 of 69 tested drafts accepted", "stopped"]
    rows = Under(parts, " · ")._rows(width)
    assert " · ".join(rows) == " · ".join(parts)
    assert all(cell_len(row) <= max(width, 31) for row in rows)


def test_glyphs_are_one_cell_wide():
    for glyphs in (UNICODE, ASCII):
        signs = [glyphs.levels, glyphs.rejected, glyphs.correction, glyphs.bonus, glyphs.rule, glyphs.bar, glyphs.full]
        assert all(cell_len(sign) == len(sign) for sign in signs)
        assert [glyphs.level(share) for share in (0.0, 1.0)] == [glyphs.levels[0], glyphs.levels[-1]]
        assert glyphs.progress(0.5, 10) == (glyphs.full * 5, glyphs.empty * 5)
    assert all(ord(c) < 128 for c in ASCII.levels + ASCII.rejected + ASCII.rule + ASCII.full + ASCII.dot)
    assert pick_glyphs({"EAGLE3CHAT_ASCII": "1"}) is ASCII


def test_sizes():
    assert [size(n) for n in (0, 1023, 1024, 431_000_000, 3 << 30)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "411 MiB",
        "3.0 GiB",
    ]
    assert finished([], "length").reason == "length"
