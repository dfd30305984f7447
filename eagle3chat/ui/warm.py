"""What the first reply needs and the first paint does not: imported behind it, while the model is opened."""

from __future__ import annotations


def warm() -> None:
    """Import the parser of Markdown, the colours of code, and what draws tables; on any thread."""
    import eagle3chat.ui.widgets.toolkit_markdown  # noqa: F401
    from eagle3chat.ui.blocks import parser

    parser()
