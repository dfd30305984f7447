"""The meter's sparkline: accepted length on a scale that no round but a longer chain changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from driving import CONTROLS, running
from fake_worker import INFO, rounds_of, whole_reply

from eagle3chat.engine.events import Round
from eagle3chat.engine.requests import Controls
from eagle3chat.ui.glyphs import ASCII, UNICODE, Glyphs
from eagle3chat.ui.tally import Tally
from eagle3chat.ui.widgets.meter import Meter

TAKEN = (0, 1, 2, 3, 4, 5, 6)


def rounds_with(accepted: tuple[int, ...], chain: int) -> list[Round]:
    words = [" w"] * sum(took + 1 for took in accepted)
    return rounds_of(words, accepted=accepted, chain=chain)


def spark(glyphs: Glyphs, controls: Controls, rounds: list[Round], longest: int = 6) -> str:
    """The bars of the meter, one a round."""
    meter, tally = Meter(glyphs, controls), Tally()
    for round_ in rounds:
        tally.add(round_)
    meter.show_controls(controls, replace(INFO, max_chain=longest))
    meter.show_tally(tally)
    return meter.line(200).plain.partition("tau ")[2].split(" ")[1]


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_each_accepted_length_has_a_bar_of_its_own(glyphs):
    bars = spark(glyphs, replace(CONTROLS, chain=6), rounds_with(TAKEN, 6))
    assert len(set(bars)) == len(TAKEN)
    assert sorted(bars, key=glyphs.levels.index) == list(bars)
    assert (bars[0], bars[-1]) == (glyphs.levels[0], glyphs.levels[-1])


def test_a_bar_is_a_length_whatever_was_drafted():
    auto = replace(CONTROLS, auto=True)
    short = rounds_with((1,), 1)  # all of it accepted, and yet one token
    long = rounds_with((1, 4), 5)
    assert spark(UNICODE, auto, [*short, *long]) == "▂▂▆"
    assert spark(UNICODE, auto, short) == "▂"  # the same alone: later rounds move nothing
    assert spark(UNICODE, replace(CONTROLS, chain=1), short) == "█"  # where no more than one can come
    assert spark(UNICODE, replace(CONTROLS, chain=1), [*short, *long]) == "▂▂▇"  # the longest chain of the reply


@pytest.mark.parametrize(("glyphs", "bars"), [(UNICODE, "▁·▁█"), (ASCII, "_:_M")])
def test_a_round_without_a_draft_is_not_one_with_nothing_accepted(glyphs, bars):
    nothing, without, full = rounds_with((0,), 3), rounds_with((0,), 0), rounds_with((3,), 3)
    assert spark(glyphs, CONTROLS, [*nothing, *without, *nothing, *full]) == bars
    assert all(glyphs.undrafted not in glyphs.levels for glyphs in (UNICODE, ASCII))


def test_one_accepted_token_is_seen_on_a_long_scale():
    assert spark(UNICODE, replace(CONTROLS, auto=True), rounds_with((0, 1), 2), longest=16) == "▁▂"


async def test_the_scale_is_told_and_the_help_says_what_it_is():
    async with running((160, 60)) as driver:
        await driver.say("go")
        await driver.emit(*whole_reply("one two three four five six seven"))
        assert " 0-3 " in driver.line_with("T 0.8")
        await driver.pilot.press("f7")
        assert " 0-6 " in driver.line_with("T 0.8")
        await driver.pilot.press("f1")
        await driver.pilot.pause()
        assert driver.line_with("accepted tokens of each of the last rounds, from 0 to the longest")
        assert driver.line_with("chain in use; · had no draft")
