"""Replies on screen: whole text, settled once, never lost, whatever the model writes."""

import itertools
import random
import time
from collections import Counter

import pytest
from driving import running, text_of
from fake_worker import finished, rounds_of, tokens_of, whole_reply
from textual.content import Content

from eagle3chat.ui.blocks import parser
from eagle3chat.ui.clean import clean
from eagle3chat.ui.widgets.marked_text import MarkedText
from eagle3chat.ui.widgets.settled import Listing, Paragraph, markdown_widget
from eagle3chat.ui.widgets.toolkit_markdown import Settled

DOCUMENTS = [
    "One word.",
    "A paragraph with **bold**, *it*, `code` and ~~strike~~.\n\nAnother\nof two lines.",
    "Generics List<String> and <b>tags</b> &amp; entities, \\(x_1^2\\), 2*3*4, __init__.\n\n\\[ \\frac{a}{b} \\]",
    "- one\n- two\n  - nested `x`\n\n1. first\n2. second\n\nafter",
    "```python\ndef f(x: list[int]) -> int:\n    return x[0]  # <b>\n```\n\nafter the fence",
    "an open fence\n\n```\nnever [closed",
    "| a | b |\n|---|---|\n| 1 <i> | 2 |\n\n> quote [b]\n\n# Heading\n\n---\n\nend",
    "[red]markup[/red] [/] [[ [link](http://x.org) ![i](j) http://x.org/a_b",
    "emoji 😀 👨‍👩‍👧, 漢字かな, e\u0301 and עברית\n\nline\ttab   columns   here",
    "[ref]: http://x.org\n\n[^1]: note\n\n    indented code\n\n* * *",
    "\n\n  leading blank lines\n\n\n\nfar below",
]
MARKS = set("*`~#>|:-+_ \n•")


def letters(text):
    """What must be on screen, in no order: everything but white space and the marks of Markdown."""
    return Counter(c for c in text if c not in MARKS)


@pytest.mark.parametrize("document", DOCUMENTS)
async def test_everything_that_was_written_is_shown(document):
    async with running((100, 30)) as driver:
        await driver.say("go")
        events = whole_reply(document)
        shuffle = random.Random(len(document))
        while events:
            count = shuffle.randint(1, 6)
            await driver.emit(*events[:count])
            del events[:count]
        await driver.until(lambda: not driver.app.host.replying)
        await driver.pilot.pause()
        written = clean(document).replace("```python", "")  # the name of a language is not drawn
        assert letters(driver.shown()) == letters(written)
        assert driver.app.chat.messages[-1].content == document


async def test_a_block_settles_once_and_stays():
    async with running((80, 40)) as driver:
        await driver.say("go")
        seen: list[list[int]] = []
        for event in whole_reply("First para.\n\n- a\n- b\n\nLast 2*3*4 one.\n\nEnd."):
            await driver.emit(event)
            column = driver.app.stage.conversation.column
            seen.append([id(w) for w in column.query("Paragraph, Settled, Rows, .settled-plain")])
        for before, after in itertools.pairwise(seen):
            assert after[: len(before)] == before
        kinds = [
            type(w) for w in driver.app.stage.conversation.column.query("Paragraph, Settled, Rows, .settled-plain")
        ]
        assert kinds == [Paragraph, Listing, MarkedText, Paragraph]


async def test_the_tail_is_plain_and_grows_only():
    async with running((60, 30)) as driver:
        await driver.say("go")
        heights = []
        for round_ in rounds_of(tokens_of("word " * 60)):
            await driver.emit(round_)
            await driver.pilot.pause()
            heights.append(driver.app.query_one(".tail").size.height)
        assert heights == sorted(heights)
        assert driver.app.query_one(".tail").text == "word " * 60


async def test_a_cancelled_reply_keeps_what_came_and_what_was_held_back():
    async with running() as driver:
        await driver.say("go")
        rounds = rounds_of(tokens_of("Half a sentence"))
        await driver.emit(*rounds)
        await driver.pilot.press("escape")
        assert "cancel" in driver.worker.calls
        await driver.emit(finished(rounds, "cancelled", " held"))
        assert driver.shown() == "Half a sentence held"
        assert driver.app.chat.messages[-1].content == "Half a sentence held"
        assert driver.line_with("tokens").endswith("143 tok/s")
        assert driver.line_with("stopped by you").strip() == "stopped by you"


async def test_two_turns_and_the_ids_of_the_first():
    async with running() as driver:
        for text in ("one", "two"):
            await driver.say(text)
            await driver.emit(*whole_reply("Fine."))
        first, second = driver.worker.said
        assert [m.role for m in second.messages] == ["user", "assistant", "user"]
        assert second.messages[1].token_ids
        assert first.controls.sampling.seed == 7


async def test_rounds_that_wait_are_drawn_in_one_go():
    async with running() as driver:
        await driver.say("go")
        events = whole_reply("Many words in one flush, and the end too.")
        await driver.emit(*events)
        assert driver.shown() == text_of(events)


async def test_the_parser_draws_what_the_check_expects():
    """`safe_tokens` reasons about tokens; Textual must draw the same characters."""
    async with running((100, 40)) as driver:
        column = driver.app.stage.conversation.column
        line = "A **b** `c` ~~d~~ *e* <f> \\(g\\) &amp; [h](i)"
        text = f"{line}\nsecond"
        await column.mount_all([markdown_widget(text, parser().parse(text)), Settled(f"> {line}\n> second")])
        await driver.pilot.pause()
        expected = "A b c d e <f> \\(g\\) &amp; [h](i)\nsecond"
        assert column.query_one(Paragraph).content.plain == expected
        assert [w._content.plain for w in column.query("MarkdownParagraph")] == [expected]
        assert parser() is parser()


@pytest.mark.parametrize("mode", ["full", "subtle", "off"])
async def test_marks(mode):
    async with running(marks=mode) as driver:
        await driver.say("go")
        await driver.emit(*rounds_of(tokens_of("one two three four five six seven"))[:2])
        tail = driver.app.query_one(".tail")
        styles = {kind: tail._style(kind) for kind in ("accepted", "correction", "bonus", "plain")}
        marked = (styles["accepted"].underline, styles["correction"].bold, styles["bonus"].italic)
        colours = len({str(style.color) for style in styles.values()})
        assert [bool(mark) for mark in marked] == [mode != "off"] * 3
        assert colours == (4 if mode == "full" else 1)


async def test_selection_copies_the_text():
    async with running() as driver:
        await driver.say("go")
        await driver.emit(
            *rounds_of(tokens_of("A line that is long enough to be wrapped at this width, twice perhaps."))
        )
        tail = driver.app.query_one(".tail")
        await driver.pilot.mouse_down(tail, offset=(2, 0))
        await driver.pilot.hover(tail, offset=(10, 1))
        await driver.pilot.mouse_up(tail, offset=(10, 1))
        selected = driver.app.screen.get_selected_text()
        assert selected
        assert selected in tail.text
        assert "\n" not in selected
        assert isinstance(driver.app.stage.keys.render(), Content)


@pytest.mark.parametrize("fence", ["```\n{}\n```", "```python\n{}\n```", "    {}"])
async def test_long_code_is_drawn_soon_and_no_language_is_guessed(fence, monkeypatch):
    def guess(*_):
        raise AssertionError("guessed")

    monkeypatch.setattr("textual.highlight.guess_language", guess)
    async with running((100, 30)) as driver:
        await driver.say("go")
        code = "([{<'" * 20000
        text = fence.format(code)
        rounds = rounds_of([text[at : at + 500] for at in range(0, len(text), 500)], chain=0)
        began = time.monotonic()
        await driver.emit(*rounds, finished(rounds))
        assert time.monotonic() - began < 10
        whole = code in driver.shown().replace("\n", "")
        assert whole
