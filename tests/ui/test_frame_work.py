"""What a frame of a long reply must not do, by count: times would say something else on every machine."""

from driving import running
from fake_worker import rounds_of, tokens_of, whole_reply
from textual.css.stylesheet import Stylesheet

from eagle3chat.ui.blocks import parser
from eagle3chat.ui.widgets.marked_text import MarkedText

REPLY = "A paragraph.\n\n- one\n- two\n\n```python\nx = 1\n```\n\n# Head\n\nEnd 2*3*4."


async def test_the_first_reply_reads_no_style_sheet(monkeypatch):
    async with running((80, 24)) as driver:
        read = []
        parse = Stylesheet.parse
        monkeypatch.setattr(Stylesheet, "parse", lambda self: (read.append(self), parse(self)))
        await driver.say("go")
        await driver.emit(*whole_reply(REPLY))
        assert driver.line_with("End 2*3*4.")
        assert read == []


async def test_a_tail_that_grows_draws_its_new_rows(monkeypatch):
    async with running((80, 40)) as driver:
        await driver.say("go")
        words = tokens_of("\n".join(f"some line of text {n}" for n in range(25)))
        rounds = rounds_of([*words, "\nand", "\nfour", "\nmore", "\nrows"], chain=0)
        await driver.emit(*rounds[:-4])
        drawn = []
        draw = MarkedText._drawn
        monkeypatch.setattr(MarkedText, "_drawn", lambda self, *place: (drawn.append(place), draw(self, *place))[1])
        await driver.emit(*rounds[-4:])
        await driver.pilot.pause()
        assert len(drawn) == 5  # one that grew, four that are new


async def test_a_finished_block_is_parsed_once(monkeypatch):
    async with running((80, 24)) as driver:
        await driver.say("go")
        parsed = []
        parse = parser().parse
        monkeypatch.setattr(parser(), "parse", lambda text: (parsed.append(text.strip()), parse(text))[1])
        await driver.emit(*whole_reply(REPLY))
        assert parsed == [block.strip() for block in REPLY.split("\n\n")]
