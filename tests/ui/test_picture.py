"""The README's picture is drawn from recorded rounds, the same every time."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from driving import running
from fake_worker import whole_reply

from eagle3chat.transcript import Transcript

SCRIPT = Path(__file__).parents[2] / "scripts" / "picture.py"


@pytest.fixture(scope="module")
def picture():
    spec = importlib.util.spec_from_file_location("picture", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["picture"] = module
    spec.loader.exec_module(module)
    return module


async def test_the_scripted_pair_draws_the_same_picture_twice(picture):
    first, second = picture.from_scripted(), picture.from_scripted()
    assert first == second
    svg = await picture.draw(first, (90, 26), "dark", 0.3)
    assert svg == await picture.draw(second, (90, 26), "dark", 0.3)
    assert "speculative" in svg
    inspected = await picture.draw(first, (90, 26), "dark", 0.3, ("f4", "left"))
    assert "considered" in inspected and "considered" not in svg
    assert "@font-face" not in svg
    assert "http://" not in svg.replace("http://www.w3.org/2000/svg", "")


async def test_a_transcript_can_be_drawn(picture, tmp_path):
    async with running(transcript=Transcript.create(tmp_path)) as driver:
        await driver.say("What is it?")
        await driver.emit(*whole_reply("It is a test of the picture."))
        path = driver.app.record.transcript.path
        driver.app.record.close()
    recording = picture.from_transcript(path)
    assert recording.asked == "What is it?"
    assert recording.info.model == "SmolLM2-135M-Instruct"
    svg = await picture.draw(recording, (80, 24), "light", 1.0)
    assert "picture" in svg
