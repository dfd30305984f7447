"""A long conversation that is opened: its end first, and what is before it when one scrolls up."""

from __future__ import annotations

from pathlib import Path

import pytest
from driving import running
from fake_worker import INFO, finished, rounds_of, tokens_of
from textual.widgets import Static

from eagle3chat.engine.requests import Controls
from eagle3chat.transcript import Transcript, load
from eagle3chat.transcript_codec import Conversation
from eagle3chat.ui.widgets.past_text import PAST_CHARACTERS, PLAIN_CHARACTERS, pieces


def past(directory: Path, answers: list[str]) -> Conversation:
    transcript = Transcript.create(directory)
    transcript.opened(INFO, Controls(3))
    for number, answer in enumerate(answers):
        transcript.user(f"question {number}")
        rounds = rounds_of(tokens_of(answer))
        for round_ in rounds:
            transcript.round(round_)
        transcript.reply(finished(rounds))
    transcript.close()
    return load(transcript.path)


def questions(driver) -> list[int]:
    found = [str(w.render()) for w in driver.app.stage.conversation.query(Static) if w.has_class("said")]
    return [int(text.split()[1]) for text in found]


@pytest.mark.parametrize("key", ["pageup", "ctrl+home"])
async def test_earlier_turns_come_when_one_scrolls_up(tmp_path, key):
    answers = [f"answer {n}. " + "word " * (PAST_CHARACTERS // 10) for n in range(7)]
    async with running(past=past(tmp_path, answers)) as driver:
        conversation = driver.app.stage.conversation
        await driver.until(lambda: conversation.max_scroll_y > 0 and conversation.at_end)
        assert questions(driver) == [5, 6]
        assert "not shown: PgUp" in str(conversation.query(".note").first(Static).render())
        for shown in ([3, 4, 5, 6], [1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5, 6]):
            for _ in range(40):
                await driver.pilot.press(key)
                await driver.pilot.pause()
                if questions(driver) == shown:
                    break
            assert questions(driver) == shown
            await driver.until(lambda: not conversation._shows_earlier)
            await driver.pilot.pause()
            assert conversation.scroll_y > 0  # the reader's place stays
        assert not conversation.query(".note")
        for _ in range(3):
            await driver.pilot.press("ctrl+home")
        assert questions(driver) == list(range(7))


async def test_back_from_a_hidden_turn_and_on(tmp_path):
    answers = ["word " * (PAST_CHARACTERS // 4) for n in range(4)]
    async with running(past=past(tmp_path, answers)) as driver:
        assert questions(driver) == [3]
        await driver.app.stage.conversation.show_earlier()
        assert questions(driver) == [2, 3]
        await driver.app.stage.conversation.back(1)
        assert questions(driver) == [0]
        assert not driver.app.stage.conversation.query(".note")


async def test_a_very_long_reply_is_drawn_to_its_first_word(tmp_path):
    text = "\n\n".join(f"item **{n}** " + "x" * 90 for n in range(200))
    async with running(past=past(tmp_path, [text])) as driver:
        conversation = driver.app.stage.conversation
        shown = driver.shown()
        assert "item **0** " in shown and "item 199 " in shown
        assert all(f"item **{n}** " in shown or f"item {n} " in shown for n in range(200))
        assert len(conversation.column.children) < 50


def test_pieces_lose_nothing() -> None:
    blocks = ["a" * (3 * PLAIN_CHARACTERS + 5), "b\n", "c" * 10]
    cut = list(pieces(blocks))
    assert "".join("".join(cut).split()) == "".join("".join(blocks).split())
    assert max(map(len, cut)) < 2 * PLAIN_CHARACTERS
