"""Names of files that no file can have, typed in the chat: a sentence, and the chat goes on."""

from __future__ import annotations

import pytest
from driving import running

from eagle3chat.transcript import Transcript

NAMES = ("~nobody-of-this-name/x", "a" * 5000, "x/" * 3000, "\udcff", ".", "/dev/zero", "/proc/self/mem")


@pytest.mark.parametrize("line", ["/models {}", "/export {}.html", "look at @{}", "/export {}", "/trace {}"])
async def test_a_name_that_no_file_can_have(tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    async with running(transcript=Transcript.create(tmp_path / "kept")) as driver:
        for name in NAMES:
            if line.startswith("look") and driver.app.host.replying:
                break
            await driver.say(line.format(name))
            await driver.pilot.pause()
            assert driver.app.is_running
        await driver.pilot.press("escape")
        await driver.say("/help")
        await driver.pilot.pause()
        assert driver.app.crash is None
