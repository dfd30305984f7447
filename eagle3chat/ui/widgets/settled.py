"""A finished block of a reply, drawn as Markdown."""

from __future__ import annotations

from textual.widgets import Markdown

from eagle3chat.ui.blocks import parser


class Settled(Markdown):
    """Give it clean text that `is_safe`. Links are shown and not opened: a model wrote them."""

    BULLETS = ["• "] * 5  # the others are of doubtful width

    def __init__(self, block: str) -> None:
        super().__init__(block, parser_factory=parser, open_links=False)
