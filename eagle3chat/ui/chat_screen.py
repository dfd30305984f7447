"""The chat's own screen."""

from __future__ import annotations

from textual.screen import Screen

from eagle3chat.ui.composition import Composition


class ChatScreen(Screen[None]):
    """The toolkit's screen, with frames that cost less."""

    def __init__(self) -> None:
        super().__init__(id="_default")
        self._compositor = Composition()
