"""The main screens as pictures: at three sizes, in a dark theme, a light one and the terminal's own colours.

One app shows them all, one after the other, and changes its theme meanwhile. After a wanted change: --snapshot-update.
"""

import pytest
from driving import running
from pytest_textual_snapshot import SVGImageExtension
from test_session_pictures import NOW, FakeIndex
from test_snapshots import REPLY, SIZES, STREAMING

from eagle3chat.ui.screens.sessions import Sessions

THEMES = {"dark": "eagle-dark", "light": "eagle-light", "ansi": "ansi-dark"}


@pytest.mark.parametrize("size", SIZES)
async def test_main_screens(size, snapshot):
    differ = []
    async with running(SIZES[size], theme="dark", flush_seconds=3600.0) as driver:
        driver.app.animation_level = "none"  # no cursor that blinks
        driver.app.stage.prompt.area.cursor_blink = False

        async def look(name):
            for theme, known in THEMES.items():
                driver.app.theme = known
                await driver.pilot.pause()
                await driver.coloured()
                for box in driver.app.screen.query("Input, TextArea"):
                    box.cursor_blink = False
                await driver.pilot.pause()
                picture = snapshot(name=f"{name}-{theme}", extension_class=SVGImageExtension)
                if picture != driver.app.export_screenshot():
                    differ.append(f"{name}-{theme}")

        await driver.say("Write a short joke about saving RAM.")
        await driver.stream(STREAMING)
        await look("streaming")
        await driver.emit(*REPLY[len(STREAMING) :])
        await look("finished")
        await driver.pilot.press("f4", "left", "left", "left")
        await look("inspector")
        await driver.pilot.press("escape", "f1")
        await look("help")
        await driver.pilot.press("escape")
        driver.app.action_params()
        await driver.pilot.press("down", *"1x", "enter")
        await look("parameters")
        await driver.pilot.press("escape")
        driver.app.push_screen(Sessions(FakeIndex(), None, driver.app.glyphs, clock=lambda: NOW))
        await driver.pilot.pause()
        await driver.until(lambda: "looking" not in "".join(driver.lines()))
        await driver.pilot.press(*"joke", "down", "down")
        await look("sessions")
    assert not differ
