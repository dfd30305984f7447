"""A finished block of a reply, drawn as Markdown.

Paragraphs, headings, lists and code are most of what a model writes, and each is one widget here. The toolkit's
Markdown, which takes a handful and a layout for each, draws the rest: tables, quotes, code in lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from textual.content import Content, Span
from textual.widget import Widget

from eagle3chat.ui.listing import Entry, entries
from eagle3chat.ui.widgets.code import Code
from eagle3chat.ui.widgets.listing import Listing
from eagle3chat.ui.widgets.paragraph import Paragraph
from eagle3chat.ui.widgets.rows import HungLine

if TYPE_CHECKING:
    from markdown_it.token import Token

STYLES = {"strong": "bold", "em": "italic", "s": "strike", "link": "underline"}
CODE = "$emphasis on $surface"


def markdown_widget(block: str, tokens: Sequence[Token]) -> Widget:
    """The widget of a block that has these `safe_tokens`."""
    kinds = [token.type for token in tokens]
    if kinds == ["paragraph_open", "inline", "paragraph_close"]:
        return Paragraph(inline_content(tokens[1]))
    if kinds == ["heading_open", "inline", "heading_close"]:
        return Paragraph(inline_content(tokens[1]).stylize("bold"))
    if kinds in (["fence"], ["code_block"]):
        code = tokens[0].content.removesuffix("\n")
        return Code(code, (tokens[0].info.split() or [""])[0])
    listed = entries(tokens)
    if listed is not None:
        return Listing(hung(listed))
    from eagle3chat.ui.widgets.toolkit_markdown import Settled  # a tenth of the start

    return Settled(block)


def hung(listed: Iterable[Entry]) -> list[HungLine]:
    """The lines of a list."""
    lines: list[HungLine] = []
    for entry in listed:
        parts = inline_content(entry.inline).split("\n", allow_blank=True) if entry.inline else [Content("")]
        lines.append(HungLine(entry.lead, parts[0]))
        lines += [HungLine(" " * len(entry.lead), part) for part in parts[1:]]
    return lines


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
