"""The list of commands, or of themes: the toolkit's, with keys that can be changed."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.command import CommandPalette, SearchIcon
from textual.widgets import Input

from eagle3chat.key_table import COMMANDS
from eagle3chat.ui.bindings import bindings


class Palette(CommandPalette, inherit_bindings=False):
    """What is typed filters the list."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(COMMANDS)

    def on_mount(self) -> None:
        self.query_one(SearchIcon).icon = "/"  # the toolkit's is a picture that not every terminal has

    def action_choose(self) -> None:
        """Do what is chosen."""
        self._select_or_command()

    @on(Input.Submitted)
    def _no_key_of_its_own(self, event: Input.Submitted) -> None:
        event.stop()
        event.prevent_default()
