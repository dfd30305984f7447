"""A reply in the conversation: settled blocks above, the live tail below.

What is shown is the text that came, block by block: each block goes from plain to Markdown once and never back.
Thinking is folded into one line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from textual.widget import Widget

from eagle3chat.engine.events import Round
from eagle3chat.ui.blocks import Splitter, safe_tokens
from eagle3chat.ui.clean import clean
from eagle3chat.ui.glyphs import Glyphs
from eagle3chat.ui.marks import Marker, Piece
from eagle3chat.ui.thinking import Divider, Part
from eagle3chat.ui.widgets.marked_text import MarkedText
from eagle3chat.ui.widgets.settled import markdown_widget
from eagle3chat.ui.widgets.thought import Thought
from eagle3chat.ui.widgets.under import Under


class Reply:
    """Feeds the widgets of one reply, which are children of the conversation.

    Args:
        home: The conversation.
        tail: The live tail, mounted at its end.
    """

    def __init__(self, home: Widget, tail: MarkedText, glyphs: Glyphs) -> None:
        self._home = home
        self._tail = tail
        self._glyphs = glyphs
        self._marker = Marker()
        self._divider = Divider()
        self._splitter = Splitter()
        self._thought: Thought | None = None  # that is being thought
        self._waiting: list[Part] = []  # text that waits to be drawn

    def take(self, rounds: Sequence[Round]) -> None:
        """Text of rounds, drawn at the next `flush`."""
        for round_ in rounds:
            self._waiting += self._divider.feed(self._marker.take(round_))

    async def flush(self) -> None:
        """Draw what waits, and settle the blocks that it finished."""
        waiting, self._waiting = self._waiting, []
        for thought, parts in groupby(waiting, key=lambda part: part.thought):
            pieces = [replace(part.piece, text=clean(part.piece.text)) for part in parts]
            await (self._think(pieces) if thought else self._say(pieces))

    async def _say(self, pieces: Sequence[Piece]) -> None:
        if self._thought is not None:
            self._thought.finish()
            self._thought = None
        self._tail.append(pieces)
        for block in [block for piece in pieces for block in self._splitter.feed(piece.text)]:
            await self._settle(block)

    async def _think(self, pieces: Sequence[Piece]) -> None:
        if self._thought is None:
            await self._settle_open()
            self._thought = Thought(self._glyphs)
            await self._home.mount_all([self._thought, self._thought.body], before=self._tail)
        self._thought.append(pieces)

    async def finish(self, text: str, under: Under) -> None:
        """The end: what a cancel flushed, the last block, and a line under it."""
        self._waiting += self._divider.feed(self._marker.rest(text)) + self._divider.rest()
        await self.flush()
        if self._thought is not None:
            self._thought.finish()
        await self._settle_open()
        with self._home.app.batch_update():
            await self._home.mount(under, after=self._tail)
            await self._tail.remove()

    async def _settle_open(self) -> None:
        rest, self._splitter = self._splitter.open, Splitter()
        if rest:
            await self._settle(rest)

    async def _settle(self, block: str) -> None:
        """Draw a finished block once and for good: as Markdown, or plain where Markdown would lose something."""
        pieces = self._tail.cut(len(block))
        if block.strip():
            with self._home.app.batch_update():
                await self._home.mount(settled(block, pieces), before=self._tail)


def settled(block: str, pieces: Sequence[Piece] | None = None) -> Widget:
    """The widget of a finished block."""
    tokens = safe_tokens(block)
    if tokens is not None:
        return markdown_widget(block, tokens)
    plain = [Piece("plain", block)] if pieces is None else pieces
    return MarkedText(trimmed(plain), classes="settled-plain")


def trimmed(pieces: Sequence[Piece]) -> list[Piece]:
    """Pieces without the blank lines around them."""
    kept = list(pieces)
    while kept and not (last := kept[-1].text.rstrip()):
        kept.pop()
    if kept:
        kept[-1] = Piece(kept[-1].kind, last)
    while kept and not (first := kept[0].text.lstrip("\n")):
        kept.pop(0)
    if kept:
        kept[0] = Piece(kept[0].kind, first)
    return kept
