"""The terminal's answer about its background: found however it is cut and however late, never typed into the prompt."""

import pytest
from driving import running
from fake_worker import whole_reply
from textual import events

from eagle3chat.ui.answers import LONGEST, Answers, may_ask
from eagle3chat.ui.input import PasteParser
from eagle3chat.ui.messages import BackgroundTold

LIGHT = "\x1b]11;rgb:f4f4/f4f4/f2f2\x1b\\"
DARK = "\x1b]11;rgba:12/12/12/ff\x07"


def keys_of(parser, *reads):
    messages = [message for read in reads for message in parser.feed(read)]
    messages += list(parser.tick())
    typed = "".join(m.character or m.key for m in messages if isinstance(m, events.Key))
    return typed, [m.light for m in messages if isinstance(m, BackgroundTold)]


@pytest.mark.parametrize("cut", range(3, len(LIGHT)))
def test_an_answer_among_keys_is_no_key(cut):
    text = f"ab{LIGHT}cd"
    assert keys_of(PasteParser(), text[: cut + 2], text[cut + 2 :]) == ("abcd", [True])


def test_dark_light_and_the_same_again():
    assert keys_of(PasteParser(), DARK, LIGHT, LIGHT, DARK) == ("", [False, True, False])


def test_an_answer_in_a_paste_is_text():
    (paste,) = [m for m in PasteParser().feed(f"\x1b[200~{LIGHT}\x1b[201~") if isinstance(m, events.Paste)]
    assert paste.text == LIGHT


def test_what_only_begins_like_one_comes_as_keys():
    answers = Answers()
    assert answers.without("a\x1b]") == "a"
    assert answers.tick() == "\x1b]"  # alt+]
    assert answers.without("\x1b]11;rgb:") == ""
    assert answers.tick() == ""  # the rest of it may be late
    endless = "x" * LONGEST
    assert answers.without(endless) == "\x1b]11;rgb:" + endless  # it is none
    assert answers.light is None


def test_a_colour_that_cannot_be_read_says_nothing():
    assert keys_of(PasteParser(), "\x1b]11;mauve\x07k") == ("k", [])


@pytest.mark.parametrize(("term", "may"), [("xterm-256color", True), ("dumb", False), ("linux", False), ("", False)])
def test_who_is_asked(term, may):
    assert may_ask({"TERM": term}) is may


async def test_the_screen_follows_until_a_person_chooses(monkeypatch):
    monkeypatch.delenv("COLORFGBG", raising=False)
    async with running() as driver:
        assert driver.app.theme == "eagle-dark"
        driver.app.post_message(BackgroundTold(True))
        await driver.until(lambda: driver.app.theme == "eagle-light")
        driver.app.post_message(BackgroundTold(False))
        await driver.until(lambda: driver.app.theme == "eagle-dark")
        await driver.say("/theme nord")
        assert driver.app.theme == "nord" and 'theme = "nord"' in driver.notice
        driver.app.post_message(BackgroundTold(True))
        await driver.say("go")
        await driver.emit(*whole_reply("Ok."))
        assert driver.app.theme == "nord"


async def test_a_theme_that_was_asked_for_stays():
    async with running(theme="dark") as driver:
        driver.app.post_message(BackgroundTold(True))
        await driver.pilot.pause()
        await driver.say("/theme mauve")
        assert "no theme 'mauve'" in driver.notice
        assert driver.app.theme == "eagle-dark"
