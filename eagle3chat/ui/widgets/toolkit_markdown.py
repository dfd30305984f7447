"""The toolkit's Markdown, for what is not one widget here: tables, quotes, code in lists.

Its import takes a tenth of the start, so nothing that the first paint needs imports it.
"""

from __future__ import annotations

from textual.widgets import Markdown

from eagle3chat.ui.blocks import parser
from eagle3chat.ui.widgets.fence import Fence


class Settled(Markdown):
    """Give it clean text that has `safe_tokens`. Links are shown and not opened: a model wrote them."""

    BLOCKS = Markdown.BLOCKS | {"fence": Fence, "code_block": Fence}
    BULLETS = ["• "] * 5  # the others are of doubtful width

    def __init__(self, block: str) -> None:
        super().__init__(block, parser_factory=parser, open_links=False)
