"""The legend tells what the engine that is open can tell, and no more; the state of speculation is always told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from driving import running
from fake_worker import INFO, whole_reply
from test_server_chat import REMOTE, TOLD, burst, ended

from eagle3chat.engine.events import Loading, Ready
from eagle3chat.ui.screens.help import Help

KINDS = ("rejected", "unreached", "correction", "bonus")
NO_DRAFT = replace(INFO, draft="", max_chain=0, default_chain=0, unavailable="the draft is for another target")


def said(driver) -> str:
    return "\n".join(driver.lines())


async def with_help(driver) -> str:
    before = said(driver)
    await driver.pilot.press("f1")
    await driver.until(lambda: isinstance(driver.app.screen, Help))
    text = before + said(driver)
    await driver.pilot.press("escape")
    return text


async def test_a_pair_with_a_draft_tells_all_kinds():
    async with running((120, 60)) as driver:
        assert all(kind in said(driver) for kind in KINDS)
        assert "drafted, and the target said the same" in said(driver)
        text = await with_help(driver)
        assert "41 of 69 tested" in text and "(unreached)" in text


@pytest.mark.parametrize("keys", [(), ("f8", "f8", "f8"), ("f7",)])
async def test_its_state_is_told(keys):
    async with running((120, 30)) as driver:
        await driver.pilot.press(*keys)
        state = {(): "chain 3", ("f7",): "chain auto"}.get(keys, "chain off")
        assert state in driver.line_with("T 0.8")


async def test_a_server_tells_pieces_and_no_kinds():
    async with running((120, 60), start=[Ready(REMOTE)]) as driver:
        assert "chain: the server's" in driver.line_with("T 0.8")
        assert said(driver).count("pieces of text, as the server sends them") == 2  # the first thing, and the lane
        text = await with_help(driver)
        assert not any(f"{kind} " in text.partition("Keys")[0] for kind in ("✗rejected", "(unreached)", *KINDS[2:]))
        assert "tokens of each of the last pieces" in text and "41 of 69" not in text
        assert "where the server tells them" in text and "positions in use" not in text
        await driver.say("go")
        await driver.emit(burst(0, "Hi", 2), ended(TOLD))
        await driver.say("/trace")
        await driver.until(lambda: any("drafts not visible" in line for line in driver.lines()))
        assert not any(kind in driver.line_with("Esc close") for kind in KINDS)


async def test_a_pair_without_a_draft_says_why_and_what_there_is():
    async with running((120, 60), start=[Ready(NO_DRAFT)]) as driver:
        assert "chain unavailable: the draft is for another target" in driver.line_with("T 0.8")
        assert said(driver).count("plain decoding: each round is one token of the target") == 2
        assert "chain" not in driver.lines()[-1] and "F1 help" in driver.lines()[-1]
        text = await with_help(driver)
        assert not any(kind in text.partition("Keys")[0] for kind in KINDS) and "41 of 69" not in text
        await driver.say("go")
        await driver.emit(*whole_reply("one two three", chain=0))
        await driver.say("/trace")
        await driver.until(lambda: any("Esc close" in line for line in driver.lines()))
        assert not any(kind in driver.line_with("Esc close") for kind in KINDS)


async def test_nothing_is_promised_before_the_pair_is_known():
    async with running((120, 30), start=[Loading("reading weights", 0.4)]) as driver:
        assert not any(kind in said(driver) for kind in KINDS)
        await driver.emit(Ready(INFO))
        assert all(kind in said(driver) for kind in KINDS)


@pytest.mark.parametrize(("start", "words"), [(REMOTE, "pieces of text"), (NO_DRAFT, "plain decoding")])
async def test_it_fits_into_the_smallest_screen(start, words):
    async with running((40, 12), start=[Ready(start)]) as driver:
        assert words in driver.lines()[-4] and "…" not in driver.lines()[-4]
    async with running((40, 12)) as driver:
        assert driver.line_with("accepted ✗rejected →correction +bonus")
