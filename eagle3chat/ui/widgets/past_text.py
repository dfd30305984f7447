"""The text of an earlier reply as widgets, in bounded time however long it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from textual.content import Content
from textual.widget import Widget

from eagle3chat.ui.blocks import Splitter
from eagle3chat.ui.clean import clean
from eagle3chat.ui.widgets.paragraph import Paragraph
from eagle3chat.ui.widgets.reply import settled

PAST_CHARACTERS = 3000  # of earlier exchanges that are put on the screen at once; more of them when one scrolls up
PLAIN_CHARACTERS = 4000  # of a widget of earlier text that is too long to be drawn as Markdown


def past_text(text: str) -> list[Widget]:
    """A text as Markdown, block by block; of a very long one only the end, and what is before it as its source."""
    splitter = Splitter()
    blocks = [block for block in (*splitter.feed(clean(text)), splitter.open) if block.strip()]
    first, characters = len(blocks), 0
    while first > 0 and characters < PAST_CHARACTERS:
        first -= 1
        characters += len(blocks[first])
    plain = [Paragraph(Content(piece)) for piece in pieces(blocks[:first])]
    return [*plain, *(settled(block) for block in blocks[first:])]


def pieces(blocks: Sequence[str]) -> Iterator[str]:
    """Blocks put together, and cut where one is very long."""
    waiting: list[str] = []
    for block in blocks:
        text = block.strip("\n")
        cuts = [text[at : at + PLAIN_CHARACTERS] for at in range(0, len(text), PLAIN_CHARACTERS)]
        for cut in cuts:
            waiting.append(cut)
            if sum(map(len, waiting)) >= PLAIN_CHARACTERS:
                yield "\n\n".join(waiting)
                waiting = []
    if waiting:
        yield "\n\n".join(waiting)
