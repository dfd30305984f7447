"""The prompt: its sign, and the editor behind it."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Static

from eagle3chat.ui.glyphs import Glyphs
from eagle3chat.ui.history import History
from eagle3chat.ui.widgets.prompt_area import PromptArea


class Prompt(Horizontal):
    """The editor behind its sign."""

    BLANK = True

    def __init__(self, glyphs: Glyphs, history: History) -> None:
        super().__init__()
        self._glyphs = glyphs
        self.area = PromptArea(history)

    def compose(self) -> ComposeResult:
        yield Static(self._glyphs.prompt, id="prompt-sign", markup=False)
        yield self.area

    @property
    def text(self) -> str:
        """The draft."""
        return self.area.text

    def write(self, text: str) -> None:
        """A text as the draft."""
        self.area.write(text)

    def give_back(self, text: str) -> None:
        """A message that was not answered becomes the draft again, unless there is another."""
        if not self.area.text:
            self.area.write(text)
