"""Code inside of a list or a quote, as the toolkit draws it."""

from __future__ import annotations

from textual.content import Content
from textual.widgets.markdown import MarkdownFence

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
