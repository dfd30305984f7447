"""The conversation: turns one below the other, the end in sight unless a person scrolls away.

All parts of all turns are children of one stream, whose layout costs the same however long the chat is.
"""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.geometry import Size
from textual.reactive import Reactive
from textual.widget import Widget
from textual.widgets import Static

from eagle3chat.engine.events import Failed, Finished
from eagle3chat.transcript_codec import Conversation as Past
from eagle3chat.transcript_codec import Note, Said
from eagle3chat.transcript_codec import Reply as PastReply
from eagle3chat.ui.blocks import Splitter
from eagle3chat.ui.clean import clean
from eagle3chat.ui.figures import under_reply
from eagle3chat.ui.glyphs import Glyphs
from eagle3chat.ui.widgets.marked_text import MarkedText
from eagle3chat.ui.widgets.reply import Reply, settled
from eagle3chat.ui.widgets.under import Under

TAIL_STEP = 2  # rows by which a live reply grows
SHOWN_TURNS = 60  # of a conversation that goes on


class Column(Vertical):
    """The turns, not wider than one likes to read."""

    BLANK = True  # nothing of its own to draw, so nothing to keep for each of its rows
    virtual_size: Reactive[Size] = Reactive(Size(0, 0))  # it does not scroll: no second layout when it grows


class Conversation(VerticalScroll, can_focus=False):
    """Turns and notes."""

    BLANK = True
    virtual_size: Reactive[Size] = Reactive(Size(0, 0))  # the layout that sets it has moved the scroll bar already

    def __init__(self, glyphs: Glyphs, *first: Widget) -> None:
        super().__init__()
        self._glyphs = glyphs
        self.column = Column(*first)

    def compose(self) -> ComposeResult:
        yield self.column

    @property
    def at_end(self) -> bool:
        """Whether the end is in sight."""
        return self.scroll_y >= self.max_scroll_y

    def to_end(self) -> None:
        """Show the end and stay there."""
        self.anchor()

    async def add_user(self, text: str) -> None:
        """A message of the user."""
        self.to_end()
        await self.column.mount_all(self._user(text))

    async def begin_reply(self) -> Reply:
        """The place of a reply."""
        tail = MarkedText(step=TAIL_STEP, classes="tail")
        await self.column.mount_all([self._label("model"), tail])
        return Reply(self.column, tail)

    async def add_note(self, text: str, error: bool = False) -> None:
        """Something that is neither of the user nor of the model."""
        await self.column.mount(self._note(text, error))

    async def add_past(self, past: Past) -> None:
        """The turns of a conversation that goes on."""
        widgets: list[Widget] = []
        if hidden := len(past.turns) - SHOWN_TURNS:
            widgets += [self._note(f"{hidden} earlier turns are not shown")] if hidden > 0 else []
        for turn in past.turns[-SHOWN_TURNS:]:
            match turn:
                case Said(role="user", text=text):
                    widgets += self._user(text)
                case PastReply():
                    widgets += self._past_reply(turn)
                case Note(text=text):
                    widgets.append(self._note(text))
        await self.column.mount_all(widgets)
        self.to_end()

    async def clear(self) -> None:
        """Take everything away."""
        await self.column.remove_children()

    def under(self, ended: Finished | Failed | None) -> Under:
        """The line under a reply that ended so."""
        parts = under_reply(ended) if isinstance(ended, Finished) else ["not finished"]
        return Under(parts, f" {self._glyphs.dot} ")

    def _label(self, who: str) -> Widget:
        label = Content.assemble((self._glyphs.bar, "$primary" if who == "model" else "$quiet"), f" {who}")
        return Static(label, classes="label", markup=False)

    def _user(self, text: str) -> list[Widget]:
        return [self._label("you"), Static(Content(clean(text)), classes="said", markup=False)]

    def _note(self, text: str, error: bool = False) -> Widget:
        return Static(Content(clean(text)), classes="note -error" if error else "note", markup=False)

    def _past_reply(self, reply: PastReply) -> list[Widget]:
        splitter = Splitter()
        blocks = [*splitter.feed(clean(reply.text)), splitter.open]
        return [
            self._label("model"),
            *(settled(block) for block in blocks if block.strip()),
            self.under(reply.finished),
        ]
