"""The round inspector: steps through the rounds of a reply, a live one too, which it follows at its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from eagle3chat.engine.events import Round
from eagle3chat.key_map import USUAL, KeyMap
from eagle3chat.key_table import INSPECTOR
from eagle3chat.ui.bindings import bindings
from eagle3chat.ui.glyphs import Glyphs
from eagle3chat.ui.inspection import find, page
from eagle3chat.ui.screens.trace import Trace
from eagle3chat.ui.widgets.find_box import FindBox
from eagle3chat.ui.widgets.line import first_fitting

LOOK_SECONDS = 0.125  # between two looks at a live reply: at most 8 pages a second
_STEP, _REPLY = "<inspector.back>/<inspector.forward>", "<inspector.reply.before>/<inspector.reply.next>"
_FIND, _CLOSE = "<inspector.find> find", "<inspector.close> close"
HINTS = (
    f"{_STEP} round   <inspector.first>/<inspector.last> first, last   {_REPLY} reply   "
    f"{_FIND}, <inspector.again> next   <inspector.trace> text   {_CLOSE}",
    f"{_STEP} round  {_REPLY} reply  {_FIND}  <inspector.trace> text  {_CLOSE}",
    f"{_STEP} round  {_FIND}  {_CLOSE}",
    f"{_STEP} round  {_CLOSE}",
)
FIND_HINT = "<find.go> find   <find.close> close the search"


class Inspector(ModalScreen[None]):
    """One round at a time.

    Args:
        replies: The rounds of each reply of the conversation, oldest first; grows while one streams. Not empty.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(INSPECTOR)
    AUTO_FOCUS: ClassVar[str | None] = ""  # the search box would take the keys

    def __init__(self, replies: Sequence[Sequence[Round]], glyphs: Glyphs, keymap: KeyMap = USUAL) -> None:
        super().__init__()
        self._keymap = keymap
        self._replies = replies
        self._glyphs = glyphs
        self._reply = len(replies) - 1
        self._round = len(replies[-1]) - 1
        self._follows = True
        self._wanted = ""
        self._seen = (0, 0, 0)

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="inspector", can_focus=False):  # it would take keys for itself
            yield Static(id="inspector-page", markup=False)
        yield FindBox(placeholder="a word or a part of one", id="inspector-find", select_on_focus=False)
        yield Static(id="inspector-hint", markup=False)

    def on_mount(self) -> None:
        self.query_one(FindBox).display = False
        self.set_interval(LOOK_SECONDS, self._look)
        self._show()

    def on_resize(self) -> None:
        self._show()

    @property
    def place(self) -> tuple[int, int]:
        """Reply and round, from 0."""
        return self._reply, self._round

    def _look(self) -> None:
        """Follow a live reply; a round that was stepped to stays."""
        if self._follows:
            self._reply, self._round = len(self._replies) - 1, len(self._replies[-1]) - 1
        if self._seen != (self._reply, self._round, len(self._replies[self._reply])):
            self._show()

    def _show(self) -> None:
        rounds = self._replies[self._reply]
        self._seen = (self._reply, self._round, len(rounds))
        width = max(20, self.query_one("#inspector").scrollable_content_region.width)
        title = f"reply {self._reply + 1} of {len(self._replies)}"
        lines = page(rounds, self._round, title, width, self._glyphs)
        self.query_one("#inspector-page", Static).update(Content("\n").join(lines))
        self._hint((FIND_HINT,) if self.query_one(FindBox).display else HINTS, width)

    def _hint(self, texts: Sequence[str], width: int) -> None:
        hints = [Content.styled(self._keymap.told(text), "$quiet") for text in texts]
        self.query_one("#inspector-hint", Static).update(first_fitting(hints, width))

    def _go(self, reply: int, round_: int) -> None:
        self._reply, self._round = reply, round_
        self._follows = (reply, round_) == (len(self._replies) - 1, len(self._replies[-1]) - 1)
        self._show()

    def action_close(self) -> None:
        """Close the inspector."""
        self.dismiss()

    def action_page(self, pages: int) -> None:
        """Scroll the page of the round."""
        body = self.query_one("#inspector")
        body.scroll_relative(y=pages * max(1, body.size.height - 1), animate=False)

    def action_step(self, step: int) -> None:
        """The round before or after; over the edge of a reply into the next one."""
        reply, round_ = self._reply, self._round + step
        if round_ < 0 and reply > 0:
            reply, round_ = reply - 1, len(self._replies[reply - 1]) - 1
        elif round_ >= len(self._replies[reply]) and reply + 1 < len(self._replies):
            reply, round_ = reply + 1, 0
        self._go(reply, max(0, min(round_, len(self._replies[reply]) - 1)))

    def action_edge(self, side: int) -> None:
        """The first or the last round of the reply."""
        self._go(self._reply, 0 if side < 0 else len(self._replies[self._reply]) - 1)

    def action_reply(self, step: int) -> None:
        """The reply before or after."""
        reply = max(0, min(self._reply + step, len(self._replies) - 1))
        self._go(reply, 0 if reply != self._reply else self._round)

    def action_trace(self) -> None:
        """The whole text of the reply."""
        self.app.push_screen(Trace(self._replies, self._glyphs, self._reply, self._keymap))

    def action_find(self) -> None:
        """Open the search."""
        box = self.query_one(FindBox)
        box.display = True
        box.value = self._wanted
        box.focus()
        self._show()

    def action_again(self) -> None:
        """The next round with what was searched."""
        if self._wanted:
            self._find(self._wanted, self._round + 1)

    def on_find_box_left(self, event: FindBox.Left) -> None:
        box = self.query_one(FindBox)
        box.display = False
        self.set_focus(None)
        self._show()
        if event.find and box.value:
            self._wanted = box.value
            self._find(self._wanted, self._round)

    def _find(self, text: str, start: int) -> None:
        found = find(self._replies[self._reply], text, start)
        if found is None:
            hint = Content.styled(f"no token of this reply holds {text!r}", "$text-error")
            self.query_one("#inspector-hint", Static).update(hint)
        else:
            self._go(self._reply, found)
