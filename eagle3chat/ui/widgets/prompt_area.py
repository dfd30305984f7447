"""The editor of the prompt: several lines, Enter sends, history with up and down, Tab completes.

shift+enter and ctrl+j make a line, and so does Enter after a backslash, since many terminals send the same for
Enter and shift+enter. A paste never sends, and a large one is a placeholder until it is sent.
"""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.widgets import TextArea

from eagle3chat.key_table import PROMPT
from eagle3chat.ui.bindings import bindings
from eagle3chat.ui.clean import clean_draft
from eagle3chat.ui.completion import Choice, choice
from eagle3chat.ui.history import Entry, History
from eagle3chat.ui.messages import Submitted
from eagle3chat.ui.pastes import Pastes

NEAR = 8  # entries of the history in which the draft of a message is looked for


class PromptArea(TextArea):
    """The editor of the prompt."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(PROMPT)

    def __init__(self, history: History) -> None:
        super().__init__(soft_wrap=True, compact=True, show_line_numbers=False)
        self.highlight_cursor_line = False
        self._kept = history
        self._pastes = Pastes()
        self._place = len(history.entries)  # in the history; its length: the draft
        self._draft = ""
        self._choice: Choice | None = None  # that Tab goes through
        self._next = 0

    def action_submit(self) -> None:
        self.call_later(self._submit)  # behind the keys that were pressed before it

    def action_line(self) -> None:
        self.call_later(self.put, "\n")

    def action_undo(self) -> None:
        """Undo; in an empty prompt suspend the program, as ctrl+z does elsewhere."""
        if self.text:
            super().action_undo()
        else:
            self.app.action_suspend_process()

    def take(self) -> str:
        """The draft, which leaves the prompt for the history; placeholders and all."""
        text = self.text
        self.remember(text)
        self.text = ""
        return text

    def remember(self, draft: str) -> None:
        """A draft for the history."""
        self._kept.add(Entry(draft, self._pastes.used(draft)))
        self._place, self._draft = len(self._kept.entries), ""

    def write(self, text: str) -> None:
        """A text as the draft; the one that was sent with it, if there was one."""
        near = (entry.text for entry in reversed(self._kept.entries[-NEAR:]))
        draft = next((draft for draft in near if draft != text and self._pastes.expand(draft) == text), None)
        self.text = self._pastes.shorten(text) if draft is None else draft
        self.move_cursor(self.document.end)

    @property
    def expanded(self) -> str:
        """The draft with what its placeholders stand for."""
        return self._pastes.expand(self.text)

    def _submit(self) -> None:
        row, column = self.cursor_location
        before = self.document[row][:column]
        if before.endswith("\\") and not before.endswith("\\\\"):
            self.replace("\n", (row, column - 1), (row, column))
            self.move_cursor((row + 1, 0))
        elif self.text.strip():
            message = self.expanded
            self.post_message(Submitted(message, self.take()))

    def on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        event.stop()
        self.put(self._pastes.shorten(clean_draft(event.text)))

    def on_key(self, event: events.Key) -> None:
        if event.key == "shift+\r":  # what xterm's modifyOtherKeys and tmux make of shift+enter
            event.prevent_default()
            event.stop()
            self.action_line()

    def put(self, text: str) -> None:
        """Text at the cursor, in the place of what is selected."""
        start, end = self.selection
        result = self.replace(text, min(start, end), max(start, end), maintain_selection_offset=False)
        self.move_cursor(result.end_location)

    @property
    def before(self) -> str:
        """The text of the line before the cursor; nothing of a command but in the first line."""
        row, column = self.cursor_location
        text = self.document[row][:column]
        return text if row == 0 or not text.startswith("/") else ""

    def action_complete(self) -> None:
        """Go on with the word before the cursor as far as it is sure, then through the ways to go on."""
        before = self.before
        going = self._choice
        if going is None or len(going.words) < 2 or before[going.start :] != going.words[self._next - 1]:
            going = self._choice = choice(before)
            self._next = 0
        if going is None:
            return
        word = going.common
        if self._next or len(word) <= len(before) - going.start:
            word = going.words[self._next]
            self._next = (self._next + 1) % len(going.words)
        row, column = self.cursor_location
        self.replace(word, (row, going.start), (row, column))
        self.move_cursor((row, going.start + len(word)))

    def action_cursor_up(self, select: bool = False) -> None:
        if not select and self.cursor_at_first_line and self._place > 0:
            self._recall(self._place - 1)
        else:
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        if not select and self.cursor_at_last_line and self._place < len(self._kept.entries):
            self._recall(self._place + 1)
        else:
            super().action_cursor_down(select)

    def _recall(self, place: int) -> None:
        entries = self._kept.entries
        if self._place == len(entries):
            self._draft = self.text
        self._place = place
        if place < len(entries):
            self.text = self._pastes.adopt(entries[place].text, entries[place].pastes)
        else:
            self.text = self._draft
        self.move_cursor(self.document.end)
