"""What the terminal sends: a paste is text, however it is cut and whatever it holds."""

import pytest
from textual import events

from eagle3chat.ui.input import END, START, PasteParser

TRICKS = (
    "one\x1b[A\ntwo\r\x1bthree",
    "\x1b",
    "a\x1b[20",
    "\x1b[200~ nested \r",
    "x" * 40 + "\x1b]0;title\x07\r" + "y" * 40 + "\r",
    "plain\r\n\tlines\r\n",
)


def parsed(*reads: str, parser: PasteParser | None = None):
    parser = parser or PasteParser()
    found: list[events.Event] = []
    for read in reads:
        found += list(parser.feed(read))
    return found


@pytest.mark.parametrize("text", TRICKS)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_a_paste_is_one_event_however_it_is_read(text, size):
    stream = "k" + START + text + END + "m"
    found = parsed(*(stream[at : at + size] for at in range(0, len(stream), size)))
    assert [type(event) for event in found] == [events.Key, events.Paste, events.Key]
    assert found[1].text == text
    assert [found[0].key, found[2].key] == ["k", "m"]


def test_a_mark_that_came_too_late_still_opens_a_paste():
    parser = PasteParser()
    found = parsed("\x1b[2", parser=parser)
    parser._timeout_time = 0.0  # the parser has waited long enough
    found += list(parser.tick())
    found += parsed("00~a\rb\r" + END, parser=parser)
    assert "enter" not in [event.key for event in found if isinstance(event, events.Key)]


@pytest.mark.parametrize(("text", "keys"), [("hi\r", "enter"), ("hi\r\x1b[A", "up"), ("\r\r", "enter")])
def test_an_enter_that_was_pressed_is_one(text, keys):
    found = [event.key for event in parsed(text)]
    assert "enter" in found
    assert found[-1] == keys


def test_text_in_a_burst_makes_lines():
    now = [10.0]
    parser = PasteParser(clock=lambda: now[0])
    assert [e.key for e in parsed("a\rb\r", parser=parser)] == ["a", "ctrl+j", "b", "ctrl+j"]
    assert [e.key for e in parsed("c\r", parser=parser)] == ["c", "ctrl+j"]  # still of the burst
    now[0] += 1.0
    assert [e.key for e in parsed("d\r", parser=parser)] == ["d", "enter"]


def test_what_follows_a_closing_mark_in_a_paste_cannot_send():
    found = parsed(START + "a" + END + "rm -rf x\r" + END)
    assert "enter" not in [event.key for event in found if isinstance(event, events.Key)]


def test_keys_of_all_sorts_pass():
    found = [event.key for event in parsed("\x1b[20~\x1b[A\x1b[13;2uq\x03")]
    assert found == ["f9", "up", "shift+enter", "q", "ctrl+c"]
