"""The prompt: several lines, Enter sends, history with up and down.

shift+enter and ctrl+j make a line, and so does Enter after a backslash, since many terminals send the same for
Enter and shift+enter. A paste never sends.
"""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Static, TextArea

from eagle3chat.ui.clean import clean_draft
from eagle3chat.ui.glyphs import Glyphs
from eagle3chat.ui.messages import Submitted


class PromptArea(TextArea):
    """The editor of the prompt."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "Send", id="prompt.send", priority=True, show=False),
        Binding("shift+enter,ctrl+j", "line", "New line", id="prompt.line", priority=True, show=False),
    ]

    def __init__(self) -> None:
        super().__init__(soft_wrap=True, compact=True, tab_behavior="focus", show_line_numbers=False)
        self.highlight_cursor_line = False
        self._history: list[str] = []
        self._place = 0  # in the history; its length: the draft
        self._draft = ""

    def action_submit(self) -> None:
        self.call_later(self._submit)  # behind the keys that were pressed before it

    def action_line(self) -> None:
        self.call_later(self._put, "\n")

    def take(self) -> str:
        """The draft, which leaves the prompt for the history."""
        text = self.text
        if text.strip() and (not self._history or self._history[-1] != text):
            self._history.append(text)
        self._place, self._draft = len(self._history), ""
        self.text = ""
        return text

    def _submit(self) -> None:
        row, column = self.cursor_location
        before = self.document[row][:column]
        if before.endswith("\\") and not before.endswith("\\\\"):
            self.replace("\n", (row, column - 1), (row, column))
            self.move_cursor((row + 1, 0))
        elif self.text.strip():
            self.post_message(Submitted(self.take()))

    def on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        event.stop()
        self._put(clean_draft(event.text))

    def on_key(self, event: events.Key) -> None:
        if event.key == "shift+\r":  # what xterm's modifyOtherKeys and tmux make of shift+enter
            event.prevent_default()
            event.stop()
            self.action_line()

    def _put(self, text: str) -> None:
        start, end = self.selection
        result = self.replace(text, min(start, end), max(start, end), maintain_selection_offset=False)
        self.move_cursor(result.end_location)

    def action_cursor_up(self, select: bool = False) -> None:
        if not select and self.cursor_at_first_line and self._place > 0:
            self._recall(self._place - 1)
        else:
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        if not select and self.cursor_at_last_line and self._place < len(self._history):
            self._recall(self._place + 1)
        else:
            super().action_cursor_down(select)

    def _recall(self, place: int) -> None:
        if self._place == len(self._history):
            self._draft = self.text
        self._place = place
        self.text = self._history[place] if place < len(self._history) else self._draft
        self.move_cursor(self.document.end)


class Prompt(Horizontal):
    """The editor behind its sign."""

    BLANK = True

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__()
        self._glyphs = glyphs
        self.area = PromptArea()

    def compose(self) -> ComposeResult:
        yield Static(self._glyphs.prompt, id="prompt-sign", markup=False)
        yield self.area

    @property
    def text(self) -> str:
        """The draft."""
        return self.area.text

    def give_back(self, text: str) -> None:
        """A message that was not answered becomes the draft again, unless there is another."""
        if not self.area.text:
            self.area.text = text
            self.area.move_cursor(self.area.document.end)
