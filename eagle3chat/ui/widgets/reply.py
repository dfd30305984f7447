"""A reply in the conversation: settled blocks above, the live tail below.

What is shown is the text that came, block by block: each block goes from plain to Markdown once and never back.
"""

from __future__ import annotations

from collections.abc import Sequence

from textual.widget import Widget

from eagle3chat.engine.events import Round
from eagle3chat.ui.blocks import Splitter, is_safe
from eagle3chat.ui.clean import clean
from eagle3chat.ui.marks import Marker, Piece
from eagle3chat.ui.widgets.marked_text import MarkedText
from eagle3chat.ui.widgets.settled import markdown_widget
from eagle3chat.ui.widgets.under import Under


class Reply:
    """Feeds the widgets of one reply, which are children of the conversation.

    Args:
        home: The conversation.
        tail: The live tail, mounted at its end.
    """

    def __init__(self, home: Widget, tail: MarkedText) -> None:
        self._home = home
        self._tail = tail
        self._marker = Marker()
        self._splitter = Splitter()
        self._finished: list[str] = []  # blocks that wait to settle
        self._waiting: list[Piece] = []  # text that waits to be drawn

    def take(self, rounds: Sequence[Round]) -> None:
        """Text of rounds, drawn at the next `flush`."""
        for round_ in rounds:
            self._add(self._marker.take(round_))

    def _add(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            text = clean(piece.text)
            self._waiting.append(Piece(piece.kind, text))
            self._finished.extend(self._splitter.feed(text))

    async def flush(self) -> None:
        """Draw what waits, and settle the blocks that it finished."""
        if not self._waiting:
            return
        self._tail.append(self._waiting)
        self._waiting = []
        finished, self._finished = self._finished, []
        for block in finished:
            await self._settle(block)

    async def finish(self, text: str, under: Under) -> None:
        """The end: what a cancel flushed, the last block, and a line under it."""
        self._add(self._marker.rest(text))
        await self.flush()
        if rest := self._splitter.open:
            await self._settle(rest)
        with self._home.app.batch_update():
            await self._home.mount(under, after=self._tail)
            await self._tail.remove()

    async def _settle(self, block: str) -> None:
        """Draw a finished block once and for good: as Markdown, or plain where Markdown would lose something."""
        pieces = self._tail.cut(len(block))
        if block.strip():
            with self._home.app.batch_update():
                await self._home.mount(settled(block, pieces), before=self._tail)


def settled(block: str, pieces: Sequence[Piece] | None = None) -> Widget:
    """The widget of a finished block."""
    if is_safe(block):
        return markdown_widget(block)
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
