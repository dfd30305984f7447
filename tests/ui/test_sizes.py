"""Every screen at every size: nothing wider than the terminal, no crash, a reply that survives a resize."""

import itertools

import pytest
from driving import running
from fake_worker import finished, rounds_of, tokens_of, whole_reply
from rich.cells import cell_len

TEXT = (
    "漢字 and a **long** line that has to be broken at most sizes, `code` too.\n\n- an item\n\n```\n"
    + "x" * 300
    + "\n```\nEnd."
)
SIZES = [(20, 8), (40, 12), (80, 24), (160, 48), (250, 80)]


def fits(driver):
    width, height = driver.app.size
    lines = driver.lines()
    return len(lines) <= height and all(cell_len(line) <= width for line in lines)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("glyphs", ["", "1"])
async def test_screens_fit(size, glyphs, monkeypatch):
    monkeypatch.setenv("EAGLE3CHAT_ASCII", glyphs)
    async with running(size) as driver:
        await driver.say("Tell me\nmore")
        await driver.emit(*whole_reply(TEXT))
        assert fits(driver)
        for keys in (["f1"], ["f4", "left"], ["f4", "t", "d"]):
            await driver.pilot.press(*keys)
            await driver.pilot.pause()
            assert fits(driver), keys
            await driver.pilot.press("escape", "escape")
        driver.app.stage.prompt.area.text = ""
        await driver.say("/race")
        for chain in (0, 3):
            rounds = rounds_of(tokens_of(TEXT), chain=chain)
            await driver.emit(*rounds)
            assert fits(driver)
            await driver.emit(finished(rounds))
        await driver.pilot.pause()
        assert fits(driver)
        await driver.pilot.press("escape")
        await driver.say("/edit")
        assert fits(driver)


async def test_a_reply_survives_a_resize():
    async with running((80, 24)) as driver:
        await driver.say("go")
        events = whole_reply(TEXT)
        for at, size in zip(range(0, len(events), 6), itertools.cycle(SIZES)):
            await driver.pilot.resize_terminal(*size)
            await driver.emit(*events[at : at + 6])
            assert fits(driver)
        await driver.until(lambda: not driver.app.host.replying)
        assert driver.shown().endswith("End.")
        assert "x" * 300 in driver.shown()
