"""The box of the round inspector's search. Its keys are of its own, so that the inspector's may be letters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual.binding import BindingType
from textual.message import Message
from textual.widgets import Input

from eagle3chat.key_table import FIND
from eagle3chat.ui.bindings import bindings


class FindBox(Input):
    """One line to write in."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(FIND)

    @dataclass
    class Left(Message):
        """It is to be closed."""

        find: bool  # what is written is to be found

    def action_go(self) -> None:
        self.post_message(self.Left(True))

    def action_close(self) -> None:
        self.post_message(self.Left(False))
