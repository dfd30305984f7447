"""The round inspector: what it says of a round, and its keys, on a finished and on a live reply."""

from __future__ import annotations

from dataclasses import replace

import pytest
from driving import running
from fake_worker import rounds_of, token, tokens_of, whole_reply

from eagle3chat.engine.events import Round
from eagle3chat.ui.glyphs import ASCII, UNICODE
from eagle3chat.ui.inspection import find, page
from eagle3chat.ui.screens.inspector import Inspector

TEXT = "one two three four five six seven eight nine ten"
ROUNDS = rounds_of(tokens_of(TEXT))


def said(rounds: list[Round], place: int, width: int = 90) -> str:
    return "\n".join(line.plain for line in page(rounds, place, "reply 1 of 1", width, UNICODE))


def test_a_round_with_a_rejection() -> None:
    lines = said(ROUNDS, 1).splitlines()
    assert lines[0].startswith("reply 1 of 1 · round 2 of") and lines[0].endswith("21.0 ms")
    assert lines[2] == "one two three four▌ five six seven eight nine ten"
    rows = [line.split() for line in lines if line[:2] in ("44", "45", "46")]
    assert rows[0] == ["44", "·five", "0.80", "0.80", "accepted"]
    assert rows[1] == ["45", "✗·the", "0.30", "0.30", "rejected"]
    assert rows[2] == ["46", "(·and)", "0.30", "-", "unreached"]
    assert rows[3][:4] == ["45", "→", "·six", "-"]
    assert "the target considered   ·six 0.60   ·the 0.20" in said(ROUNDS, 1)
    assert "noise of position 45 the target drew ·six: a draw" in said(ROUNDS, 1)


def test_what_is_said_of_the_other_kinds() -> None:
    bonus = ROUNDS[0]
    assert "gives one more" in said([bonus], 0)
    assert "not always a mistake" not in said([bonus], 0)
    greedy = replace(ROUNDS[1], temperature=0.0)
    assert "Greedy: ·six is the target's most probable token" in said([greedy], 0)
    plain = replace(bonus, drafted=(), accepted=0, own_kind="plain", why="drafting costs more than it brings", chain=0)
    assert "plain decoding" in said([plain], 0)
    assert "here 0: drafting costs more" in said([plain], 0)
    cut = replace(bonus, own=None, own_kind=None)
    assert "before the target's own token" in said([cut], 0)
    drawn = replace(ROUNDS[1], considered=(token(" the", p=0.6), ROUNDS[1].own))
    assert "though ·the was more probable" in said([drawn], 0)
    timed = replace(bonus, seconds=0.0208, draft_seconds=0.0041, verify_seconds=0.0152)
    assert "draft 4.1 ms · verify 15.2 ms · host 1.5 ms" in said([timed], 0)


@pytest.mark.parametrize("width", [20, 36, 60, 76, 110])
def test_every_line_but_sentences_fits(width: int) -> None:
    for glyphs in (UNICODE, ASCII):
        for place in range(len(ROUNDS)):
            lines = page(ROUNDS, place, "reply 1 of 1", width, glyphs)
            assert all(line.cell_length <= width for line in lines[2:-1] if "  " in line.plain), (width, place)
            assert lines[2].cell_length <= max(width, 24)


def test_control_codes_of_tokens_stay_out() -> None:
    bad = replace(ROUNDS[1], drafted=(token("\x1b[2J", True), *ROUNDS[1].drafted[1:]), text="\x1b]52;c;x\x07")
    assert not set(said([bad, bad], 0)) & set("\x1b\x07")


def test_finding() -> None:
    assert find(ROUNDS, "SEVEN", 0) == 2
    assert find(ROUNDS, "the", 2) == 2 and find(ROUNDS, "one", 1) == 0
    assert find(ROUNDS, "nowhere", 0) is None


async def test_keys_step_through_rounds_and_replies():
    async with running(size=(120, 36)) as driver:
        await driver.pilot.press("f4")
        assert "no rounds" in driver.notice
        for text in ("first", "second"):
            await driver.say(text)
            await driver.emit(*whole_reply(TEXT))
        await driver.pilot.press("f4")
        inspector = driver.app.screen
        assert isinstance(inspector, Inspector)
        last = len(driver.app.chat.rounds[1]) - 1
        assert inspector.place == (1, last)
        await driver.pilot.press("left")
        assert inspector.place == (1, last - 1)
        await driver.pilot.press("home")
        assert inspector.place == (1, 0)
        await driver.pilot.press("left")
        assert inspector.place == (0, len(driver.app.chat.rounds[0]) - 1)
        await driver.pilot.press("up", "home", "left")
        assert inspector.place == (0, 0)
        await driver.pilot.press("down", "end", "right")
        assert inspector.place == (1, last)
        assert any("round 1 of" in line for line in driver.lines()) is False
        await driver.pilot.press("home", "slash", *"seven", "enter")
        assert inspector.place == (1, 2)
        await driver.pilot.press("slash")
        await driver.pilot.press(*("backspace",) * 5, *"zebra", "enter")
        assert inspector.place == (1, 2)
        assert any("no token of this reply holds" in line for line in driver.lines())
        await driver.pilot.press("escape")
        assert not isinstance(driver.app.screen, Inspector)


async def test_it_follows_a_live_reply_until_it_is_stepped():
    async with running(size=(100, 30)) as driver:
        await driver.say("go")
        await driver.emit(*ROUNDS[:2])
        await driver.pilot.press("f4")
        inspector = driver.app.screen
        assert inspector.place == (0, 1)
        await driver.emit(ROUNDS[2])
        await driver.until(lambda: inspector.place == (0, 2))
        await driver.pilot.press("left")
        await driver.emit(ROUNDS[3])
        await driver.until(lambda: inspector._seen[2] == 4)
        assert inspector.place == (0, 1)
        await driver.pilot.press("escape", "escape")  # the first closes the inspector, the second stops the reply
        assert "cancel" in driver.worker.calls


async def test_a_new_conversation_has_nothing_to_inspect():
    async with running() as driver:
        await driver.say("go")
        await driver.emit(*whole_reply(TEXT))
        await driver.say("/new")
        await driver.say("/inspect")
        assert "no rounds" in driver.notice
