"""What slash commands do, by name. The app mixes them in; commands that are keys as well are actions."""

from __future__ import annotations

import asyncio
import os

from eagle3chat.engine.errors import SettingError
from eagle3chat.ui.actions import ControlActions, SightActions, TurnActions
from eagle3chat.ui.commands import Call, changed
from eagle3chat.ui.exporting import export
from eagle3chat.ui.session_actions import SessionActions
from eagle3chat.ui.theme import pick_theme


class CommandActions(ControlActions, SightActions, TurnActions, SessionActions):
    """Commands."""

    async def perform(self, call: Call) -> None:
        """Do what a slash command says.

        Raises:
            SettingError: Its argument is not possible.
        """
        name, argument = call.command.name, call.argument
        controls = changed(self.chat.controls, name, argument, self.chat.info)
        if controls is not None:
            self.chat.keep_seed |= name == "seed"
            return self.host.set_controls(controls)
        if not await self._on_turns(name, argument) and not await self._on_screen(name, argument):
            await self.run_action(name)  # the other ones are keys as well

    async def _on_turns(self, name: str, argument: str) -> bool:
        """Do it, if it changes the conversation; whether it does."""
        match name:
            case "system":
                self.host.set_system(argument)
                self.stage.keys.tell("The system message holds from the next message on.")
            case "new":
                self.turns.leave()
                await self.host.renew()
            case "again":
                await self.turns.again()
            case "continue":
                await self.turns.go_on()
            case "alternative":
                await self.turns.choose(argument)
            case "edit":
                self.turns.edit(argument)
            case "delete":
                await self.turns.delete()
            case "undo":
                await self.turns.undo()
            case "fork":
                await self.fork_session(argument)
            case _:
                return False
        return True

    async def _on_screen(self, name: str, argument: str) -> bool:
        """Do it, if it shows or fetches something; whether it does."""
        match name:
            case "copy":
                await self.action_copy(argument)
            case "export":
                await self.export(argument)
            case "race":
                await self.race(argument)
            case "trace":
                self.trace(argument)
            case "find":
                await self.find(argument)
            case "slow":
                self.slow(argument)
            case "sessions":
                self.sessions(argument)
            case "title":
                self.name_session(argument)
            case "models" if argument:
                await self.open_model(argument)
            case "theme":
                self.choose_theme(argument)
            case "mouse":
                self.choose_mouse(argument)
            case _:
                return False
        return True

    async def export(self, wanted: str) -> None:
        """Write the conversation into a file.

        Raises:
            SettingError: There is none, or the file cannot be written.
        """
        transcript = self.record.transcript
        if transcript is None or not transcript.path.exists():
            raise SettingError("There is no saved conversation to export.", "/copy all copies what was said.")
        transcript.flush()
        self.stage.keys.tell(f"written: {await asyncio.to_thread(export, transcript.path, wanted)}", seconds=None)

    def choose_theme(self, name: str) -> None:
        """Other colours; without a name: choose from all.

        Raises:
            SettingError: There is no such theme.
        """
        if not name:
            return self.action_change_theme()
        self.theme = pick_theme(name, os.environ, no_color=self.no_color)
        self.stage.keys.tell(f'theme {self.theme}: theme = "{name}" in the settings file keeps it')

    def choose_mouse(self, wanted: str) -> None:
        """Take the mouse, or leave it to the terminal.

        Raises:
            SettingError: It is neither on nor off.
        """
        if wanted not in ("on", "off"):
            raise SettingError(f"/mouse takes on or off, not {wanted!r}.")
        take = getattr(self._driver, "set_mouse", None)
        if take is not None:
            take(wanted == "on")
        whose = "the screen's" if wanted == "on" else "the terminal's: its own selection works"
        self.stage.keys.tell(f"the mouse is {whose}")
