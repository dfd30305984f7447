"""A finished block of a reply, drawn as Markdown.

Paragraphs and headings are most of what a model writes, and each is one widget here. The toolkit's Markdown, which
takes a handful and a layout for each, draws the rest: lists, tables, quotes, fences.
"""

from __future__ import annotations

from markdown_it.token import Token
from textual.content import Content, Span
from textual.geometry import Size
from textual.reactive import Reactive
from textual.widget import Widget
from textual.widgets import Markdown, Static
from textual.widgets.markdown import MarkdownFence

from eagle3chat.ui.blocks import parser

STYLES = {"strong": "bold", "em": "italic", "s": "strike", "link": "underline"}
CODE = "$primary on $surface"
PLAIN = "text"  # the language of code without one
COLOURED, COLOURED_LINE = 60_000, 2_000  # characters of code, and of a line of it, up to which it has colours


class Fence(MarkdownFence):
    """Code. Its colours are those of the language that the model named: to guess one takes as long as it likes."""

    @classmethod
    def highlight(cls, code: str, language: str, ansi: bool = False, dark: bool = False) -> Content:
        named = (language.split() or [PLAIN])[0]
        longest = max(map(len, code.split("\n")), default=0)
        if len(code) > COLOURED or longest > COLOURED_LINE:
            named = PLAIN
        return super().highlight(code, named, ansi, dark)


class Settled(Markdown):
    """Give it clean text that `is_safe`. Links are shown and not opened: a model wrote them."""

    BLOCKS = Markdown.BLOCKS | {"fence": Fence, "code_block": Fence}
    BULLETS = ["• "] * 5  # the others are of doubtful width

    def __init__(self, block: str) -> None:
        super().__init__(block, parser_factory=parser, open_links=False)


class Paragraph(Static):
    """A paragraph or a heading."""

    virtual_size: Reactive[Size] = Reactive(Size(0, 0))  # it does not scroll: no second layout for it

    def __init__(self, content: Content) -> None:
        super().__init__(content, markup=False)


def markdown_widget(block: str) -> Widget:
    """The widget of a block that `is_safe`."""
    tokens = parser().parse(block)
    kinds = [token.type for token in tokens]
    if kinds == ["paragraph_open", "inline", "paragraph_close"]:
        return Paragraph(inline_content(tokens[1]))
    if kinds == ["heading_open", "inline", "heading_close"]:
        return Paragraph(inline_content(tokens[1]).stylize("bold"))
    return Settled(block)


def inline_content(token: Token) -> Content:
    """Text with emphasis, code and strikes as styles."""
    text = ""
    spans: list[Span] = []
    begun: list[tuple[str, int]] = []
    for child in token.children or ():
        if child.type in ("softbreak", "hardbreak"):
            text += "\n"
        elif child.type.endswith("_open"):
            begun.append((STYLES[child.type.removesuffix("_open")], len(text)))
        elif child.type.endswith("_close"):
            style, start = begun.pop()
            spans.append(Span(start, len(text), style))
        else:
            if child.type == "code_inline":
                spans.append(Span(len(text), len(text) + len(child.content), CODE))
            text += child.content
    return Content(text, spans)
