"""The toolkit's Markdown, for what is not one widget here: tables, quotes, code in lists.

Its import takes a tenth of the start, so nothing that the first paint needs imports it.
"""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownFence

from eagle3chat.ui.blocks import parser
from eagle3chat.ui.code_colours import LONGEST, LONGEST_LINE

PLAIN = "text"  # the language of code without one


class Fence(MarkdownFence):
    """Code inside of a list or a quote. Its colours are those of the language that the model named."""

    @classmethod
    def highlight(cls, code: str, language: str, ansi: bool = False, dark: bool = False) -> Content:
        named = (language.split() or [PLAIN])[0]
        if len(code) > LONGEST or max(map(len, code.split("\n")), default=0) > LONGEST_LINE:
            named = PLAIN
        return super().highlight(code, named, ansi, dark)


class Settled(Markdown):
    """Give it clean text that has `safe_tokens`. Links are shown and not opened: a model wrote them."""

    BLOCKS = Markdown.BLOCKS | {"fence": Fence, "code_block": Fence}
    BULLETS = ["• "] * 5  # the others are of doubtful width

    def __init__(self, block: str) -> None:
        super().__init__(block, parser_factory=parser, open_links=False)
