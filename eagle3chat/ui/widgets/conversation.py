"""The conversation: turns one below the other, the end in sight unless a person scrolls away.

All parts of all turns are children of one stream, whose layout costs the same however long the chat is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.geometry import Size
from textual.reactive import Reactive
from textual.scrollbar import ScrollBar
from textual.widget import Widget
from textual.widgets import Static

from eagle3chat.engine.events import Failed, Finished
from eagle3chat.key_map import USUAL, KeyMap
from eagle3chat.transcript_line import Exchange
from eagle3chat.ui.clean import clean
from eagle3chat.ui.figures import plural, under_reply
from eagle3chat.ui.glyphs import Glyphs
from eagle3chat.ui.marks import Piece
from eagle3chat.ui.thinking import reply_parts
from eagle3chat.ui.widgets.bar import Bar
from eagle3chat.ui.widgets.column import Column
from eagle3chat.ui.widgets.marked_text import MarkedText
from eagle3chat.ui.widgets.past_text import PAST_CHARACTERS, past_text
from eagle3chat.ui.widgets.reply import Reply
from eagle3chat.ui.widgets.rows import Rows
from eagle3chat.ui.widgets.still import Still
from eagle3chat.ui.widgets.thought import Thought
from eagle3chat.ui.widgets.under import Under

TAIL_STEP = 2  # rows by which a live reply grows
SHOWN_TURNS = 60  # exchanges that are on the screen
SPARE_TURNS = 20  # more of them, before the oldest are taken from it
SAID_LINES = 40  # of a message of the user; of a longer one the beginning is shown
SAID_CHARACTERS = 6000
FOUND = "-found"  # class of the part that a search found


@dataclass(slots=True)
class _Place:
    """Where an exchange begins on the screen, and its reply."""

    said: Widget
    reply: Widget | None = None


class Conversation(VerticalScroll, can_focus=False):
    """Turns and notes."""

    BLANK = True
    # The layout that sets it has moved the scroll bar already, and draws all of the conversation.
    virtual_size: Reactive[Size] = Reactive(Size(0, 0), repaint=False)

    def __init__(
        self,
        glyphs: Glyphs,
        *first: Widget,
        exchanges: Callable[[], Sequence[Exchange]] = tuple,
        keymap: KeyMap = USUAL,
    ) -> None:
        super().__init__()
        self._glyphs = glyphs
        self._keymap = keymap
        self._exchanges = exchanges  # all that there are
        self._places: list[_Place] = []  # of the exchanges that are shown
        self._hidden = 0  # exchanges before them
        self._shows_earlier = False
        self.column = Column(*first)

    def compose(self) -> ComposeResult:
        yield self.column

    @property
    def vertical_scrollbar(self) -> ScrollBar:
        if self._vertical_scrollbar is None:
            self._vertical_scrollbar = Bar(vertical=True, name="vertical", thickness=self.scrollbar_size_vertical)
            self._vertical_scrollbar.display = False
            self.app._start_widget(self, self._vertical_scrollbar)
        return self._vertical_scrollbar

    def _scroll_update(self, virtual_size: Size) -> None:
        """The layout is about to draw, so nothing here has to be drawn once more behind it."""
        self._refresh_scrollbars()
        bar = self.vertical_scrollbar
        if self.show_vertical_scrollbar and isinstance(bar, Bar):
            bar.fit(virtual_size.height, self.container_size.height)
        self.scroll_y = self.validate_scroll_y(self.scroll_y)

    @property
    def at_end(self) -> bool:
        """Whether the end is in sight."""
        return self.scroll_y >= self.max_scroll_y

    @property
    def follows(self) -> bool:
        """Whether the end stays in sight, whatever comes."""
        return self._anchored and not self._anchor_released

    def to_end(self) -> None:
        """Show the end and stay there."""
        self.anchor()

    def to_reply(self) -> bool:
        """Show the beginning of the last reply; whether there is one."""
        reply = self._places[-1].reply if self._places else None
        if reply is not None:
            self.release_anchor()
            self.scroll_to_widget(reply, animate=False, top=True, force=True)
        return reply is not None

    async def to_match(self, place: int, text: str) -> None:
        """Show the exchange at `place` of all, where it holds a text; capitals count for nothing."""
        while place < self._hidden:
            self._shows_earlier = False
            if not await self.show_earlier():
                break
        at = max(0, place - self._hidden)
        children = list(self.column.children)
        first = children.index(self._places[at].said)
        end = children.index(self._places[at + 1].said) if at + 1 < len(self._places) else len(children)
        wanted = text.casefold()
        shown = children[first:end]
        match = next((widget for widget in shown if wanted in _text_of(widget).casefold()), shown[0])
        self.release_anchor()
        for before in self.column.query(f".{FOUND}"):
            before.remove_class(FOUND)
        match.add_class(FOUND)
        self.call_after_refresh(self._back_to, match)  # behind the earlier ones

    async def add_user(self, text: str) -> None:
        """A message of the user."""
        self.to_end()
        widgets = self._user(text)
        self._places.append(_Place(widgets[0]))
        await self.column.mount_all(widgets)
        if len(self._places) > SHOWN_TURNS + SPARE_TURNS:
            await self._hide(len(self._places) - SHOWN_TURNS)

    async def begin_reply(self) -> Reply:
        """The place of a reply to the last message, in that of the reply before it if there is one."""
        await self._take_reply()
        label, tail = self._label("model"), MarkedText(step=TAIL_STEP, classes="tail")
        self._places[-1].reply = label
        await self.column.mount_all([label, tail])
        return Reply(self.column, tail, self._glyphs)

    async def show_reply(self, exchange: Exchange) -> None:
        """The reply that counts, in the place of what is shown."""
        await self._take_reply()
        if exchange.reply is not None:
            widgets = self._past_reply(exchange)
            self._places[-1].reply = widgets[0]
            await self.column.mount_all(widgets)

    async def add_note(self, text: str, error: bool = False) -> None:
        """Something that is neither of the user nor of the model."""
        await self.column.mount(self._note(self._keymap.told(text), error))

    async def add_past(self, past: Sequence[Exchange]) -> None:
        """The exchanges of a conversation that goes on."""
        self._hidden = _first_of_last(past)
        places, widgets = self._drawn(past[self._hidden :])
        self._places += places
        await self.column.mount_all([self._hidden_note(), *widgets] if self._hidden else widgets)
        self.to_end()

    async def show_earlier(self) -> bool:
        """Put the exchanges before the first one on the screen; whether there were any."""
        hidden = self._exchanges()[: self._hidden]
        if not hidden or not self._places or self._shows_earlier:
            return False
        self._shows_earlier = True
        self.release_anchor()
        first, self._hidden = self._places[0].said, _first_of_last(hidden)
        places, widgets = self._drawn(hidden[self._hidden :])
        self._places[:0] = places
        children = list(self.column.children)
        with self.app.batch_update():
            await self.column.remove_children(children[: children.index(first)])
            await self.column.mount_all([self._hidden_note(), *widgets] if self._hidden else widgets, before=first)
        self.call_after_refresh(self._back_to, first)
        return True

    def _back_to(self, first: Widget) -> None:
        self._shows_earlier = False
        self.scroll_to_widget(first, animate=False, top=True, force=True)

    async def on_mouse_scroll_up(self) -> None:
        if self.scroll_y <= 0:
            await self.show_earlier()

    def _drawn(self, past: Sequence[Exchange]) -> tuple[list[_Place], list[Widget]]:
        places: list[_Place] = []
        widgets: list[Widget] = []
        for exchange in past:
            said, reply = self._user(exchange.said), self._past_reply(exchange)
            places.append(_Place(said[0], reply[0] if reply else None))
            widgets += said + reply
        return places, widgets

    async def back(self, keep: int) -> None:
        """Take all but the first `keep` exchanges away."""
        if keep < self._hidden:
            kept = self._exchanges()[:keep]
            await self.clear()
            return await self.add_past(kept)
        first = keep - self._hidden
        if first < len(self._places):
            gone = self._places[first:]
            del self._places[first:]
            await self._remove_from(gone[0].said)

    async def clear(self) -> None:
        """Take everything away."""
        self._places.clear()
        self._hidden = 0
        await self.column.remove_children()

    def under(self, ended: Finished | Failed | None, exchange: Exchange | None = None) -> Under:
        """The line under a reply that ended so; which of several replies it is."""
        parts = under_reply(ended) if isinstance(ended, Finished) else ["not finished"]
        if exchange is not None and len(exchange.replies) > 1:
            parts.insert(0, f"reply {exchange.chosen + 1} of {len(exchange.replies)}")
        return Under(parts, f" {self._glyphs.dot} ")

    async def _take_reply(self) -> None:
        if (label := self._places[-1].reply) is not None:
            self._places[-1].reply = None
            await self._remove_from(label)

    async def _remove_from(self, first: Widget) -> None:
        children = list(self.column.children)
        await self.column.remove_children(children[children.index(first) :])

    async def _hide(self, count: int) -> None:
        """Take the oldest exchanges from the screen."""
        self._hidden += count
        del self._places[:count]
        children = list(self.column.children)
        with self.app.batch_update():
            await self.column.remove_children(children[: children.index(self._places[0].said)])
            await self.column.mount(self._hidden_note(), before=0)

    def _hidden_note(self) -> Widget:
        were = "turn is" if self._hidden == 1 else "turns are"
        more = self._keymap.told("<chat.page.up> at the top shows more")
        return self._note(f"{self._hidden} earlier {were} not shown: {more}")

    def _label(self, who: str) -> Widget:
        label = Content.assemble((self._glyphs.bar, "$emphasis" if who == "model" else "$quiet"), f" {who}")
        return Still(label, classes="label", markup=False)

    def _user(self, text: str) -> list[Widget]:
        lines = text[:SAID_CHARACTERS].split("\n")[:SAID_LINES]
        shown = Content(clean("\n".join(lines)))
        if left := len(text) - sum(len(line) + 1 for line in lines) + 1:
            shown += Content.styled(f"\n{self._glyphs.ellipsis} {plural(left, 'character')} more", "$quiet")
        return [self._label("you"), Still(shown, classes="said", markup=False)]

    def _note(self, text: str, error: bool = False) -> Widget:
        return Still(Content(clean(text)), classes="note -error" if error else "note", markup=False)

    def _past_reply(self, exchange: Exchange) -> list[Widget]:
        reply = exchange.reply
        if reply is None:
            return []
        widgets = [self._label("model")]
        for is_thought, parts in groupby(reply_parts(reply), key=lambda part: part.thought):
            text = "".join(part.piece.text for part in parts)
            if is_thought:
                thought = Thought(self._glyphs)
                thought.append([Piece("plain", clean(text))])
                thought.finish()
                widgets += [thought, thought.body]
            else:
                widgets += past_text(text)
        return [*widgets, self.under(reply.finished, exchange)]


def _first_of_last(past: Sequence[Exchange]) -> int:
    """The first of the last exchanges that are put on the screen at once."""
    first, characters = len(past), 0
    while first > 0 and characters < PAST_CHARACTERS and len(past) - first < SHOWN_TURNS:
        first -= 1
        reply = past[first].reply
        characters += len(past[first].said[:SAID_CHARACTERS]) + (len(reply.text) if reply else 0)
    return first


def _text_of(widget: Widget) -> str:
    """What a part of a turn says."""
    match widget:
        case MarkedText() | Rows():
            return widget.text
        case Static():
            return str(widget.content)
        case _:
            return str(getattr(widget, "source", ""))  # of the toolkit's Markdown, or of nothing
