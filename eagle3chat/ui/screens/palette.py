"""The list of commands, or of themes: the toolkit's, with keys that can be changed."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.command import CommandPalette
from textual.widgets import Input

from eagle3chat.key_table import COMMANDS
from eagle3chat.ui.bindings import bindings


class Palette(CommandPalette, inherit_bindings=False):
    """What is typed filters the list."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(COMMANDS)

    def action_choose(self) -> None:
        """Do what is chosen."""
        self._select_or_command()

    @on(Input.Submitted)
    def _no_key_of_its_own(self, event: Input.Submitted) -> None:
        event.stop()
        event.prevent_default()
