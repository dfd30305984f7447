"""What a model thought before it answered: one line, and the text under it where a person wants it."""

from __future__ import annotations

from collections.abc import Iterable

from textual import events
from textual.content import Content
from textual.widgets import Static

from eagle3chat.ui.figures import plural
from eagle3chat.ui.glyphs import Glyphs
from eagle3chat.ui.marks import Piece
from eagle3chat.ui.thinking import WordCount
from eagle3chat.ui.widgets.marked_text import MarkedText

LABEL = "thought\n"  # what Gemma 4 writes first in its channel


class Thought(Static):
    """The line. A click, or `-thoughts` on the screen, opens what it stands for."""

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(classes="thought", markup=False)
        self._glyphs = glyphs
        self._count = WordCount()
        self._label = LABEL  # what of the label may still come
        self._over = False
        self.body = MarkedText(classes="thought-body")

    def on_mount(self) -> None:
        self._draw()

    def append(self, pieces: Iterable[Piece]) -> None:
        """More of it."""
        kept = [cut for piece in pieces if (cut := self._without_label(piece)).text]
        for piece in kept:
            self._count.add(piece.text)
        self.body.append(kept)
        self._draw()

    def finish(self) -> None:
        """The model has begun to answer, or has been stopped."""
        self._over = True
        self._draw()

    def on_click(self, event: events.Click) -> None:
        event.stop()
        self.body.toggle_class("-open")
        self._draw()

    def _without_label(self, piece: Piece) -> Piece:
        text = piece.text
        while self._label and text and text[0] == self._label[0]:
            text, self._label = text[1:], self._label[1:]
        if text:
            self._label = ""
        return Piece(piece.kind, text, piece.thought)

    def _draw(self) -> None:
        if self.is_attached:
            what = "thought" if self._over else "thinking"
            sign = self._glyphs.open if self.body.has_class("-open") else self._glyphs.shut
            self.update(Content.styled(f"{sign} {what}, {plural(self._count.words, 'word')}", "$quiet italic"))
