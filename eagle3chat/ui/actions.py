"""What keys and commands do to the chat, by kind: controls, what is in sight, turns. The app mixes them in."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Iterable
from dataclasses import replace
from functools import partial

from textual.app import App, SuspendNotSupported, SystemCommand
from textual.screen import Screen

from eagle3chat.engine.errors import Eagle3Error, SettingError
from eagle3chat.key_map import KeyMap
from eagle3chat.ui.chat import Chat
from eagle3chat.ui.clipboard import copy
from eagle3chat.ui.commands import COMMANDS, checked_chain, with_auto
from eagle3chat.ui.editor import edited
from eagle3chat.ui.figures import number, plural
from eagle3chat.ui.glyphs import Glyphs
from eagle3chat.ui.host import Host
from eagle3chat.ui.messages import Submitted
from eagle3chat.ui.sources import source
from eagle3chat.ui.turns import Turns
from eagle3chat.ui.widgets.stage import Stage

SLOWEST, FASTEST = 0.1, 20.0  # rounds a second of slow motion


class Parts(App[int]):
    """The parts of the app that actions work on."""

    chat: Chat
    stage: Stage
    host: Host
    turns: Turns
    glyphs: Glyphs
    keymap: KeyMap

    def complain(self, error: Eagle3Error) -> None:
        """Tell what was wrong with a key or a command."""
        self.stage.keys.tell(str(error), error=True)

    async def attempt(self, work: Awaitable[None]) -> None:
        """Do it, or tell why not."""
        try:
            await work
        except Eagle3Error as error:
            self.complain(error)


class ControlActions(Parts):
    """Chain, temperature, slow motion."""

    def action_chain(self, step: int) -> None:
        """A longer or shorter chain."""
        try:
            chain = checked_chain(max(0, self.chat.chain + step), self.chat.info)
            if chain == self.chat.chain and not self.chat.controls.auto:
                raise SettingError("The chain is off already.", "<chat.chain.longer> makes it longer.")
        except SettingError as error:
            self.complain(error)
        else:
            self.host.set_controls(replace(self.chat.controls, chain=chain, auto=False))

    def action_auto(self) -> None:
        """A chain that finds its own length; pressed again, the length that it has stays."""
        controls = self.chat.controls
        try:
            found = replace(controls, chain=self.chat.chain, auto=False)
            self.host.set_controls(found if controls.auto else with_auto(controls, self.chat.info))
            told = "the chain finds its length: <chat.inspect> says why"
            self.stage.keys.tell(f"the chain stays at {found.chain}" if controls.auto else told)
        except SettingError as error:
            self.complain(error)

    def action_temperature(self, step: int) -> None:
        """A higher or lower temperature, by 0.1."""
        sampling = self.chat.controls.sampling
        temperature = max(0.0, round(sampling.temperature + step / 10, 1))
        self.host.set_controls(replace(self.chat.controls, sampling=replace(sampling, temperature=temperature)))
        if temperature == 0:
            self.stage.keys.tell("temperature 0: the most probable token every time")

    def slow(self, argument: str) -> None:
        """Show so many rounds a second.

        Raises:
            SettingError: It is no such number.
        """
        try:
            rate = float(argument)
        except ValueError:
            rate = -1.0
        if rate and not SLOWEST <= rate <= FASTEST:
            raise SettingError(f"/slow takes rounds a second, not {argument!r}.", "Write /slow 2; /slow 0 ends it.")
        self.host.pace.rate = rate
        self.stage.show_slow(rate)
        told = f"slow motion: {number(rate)} rounds a second are shown; the model works at its own speed"
        self.stage.keys.tell(told if rate else "rounds are shown as they come")


class SightActions(Parts):
    """What is in sight of the conversation, and what stands above it."""

    _found: tuple[str, int] = ("", 0)  # the text that was searched last, and the place of its exchange

    async def action_page(self, direction: int) -> None:
        """Scroll the conversation by a page; above its first row are earlier turns."""
        conversation = self.stage.conversation
        if direction < 0 and conversation.scroll_y <= 0 and await conversation.show_earlier():
            return
        move = conversation.scroll_page_up if direction < 0 else conversation.scroll_page_down
        move(animate=False)
        self.stage.check_end()

    async def action_edge(self, direction: int) -> None:
        """Scroll to the first or the last turn that is shown; at the first one: show earlier ones."""
        conversation = self.stage.conversation
        if direction < 0 and conversation.scroll_y <= 0 and await conversation.show_earlier():
            return
        if direction < 0:
            self.stage.conversation.scroll_home(animate=False)
        else:
            self.stage.conversation.to_end()
        self.stage.check_end()

    def action_top(self) -> None:
        """Scroll to the beginning of the last reply."""
        if not self.stage.conversation.to_reply():
            self.stage.keys.tell("There is no reply yet.")
        self.stage.check_end()

    async def find(self, text: str) -> None:
        """The nearest turn with a text, from the last one back; the same text again: the one before.

        Raises:
            SettingError: No turn holds it.
        """
        exchanges = self.chat.exchanges
        begin = self._found[1] if self._found[0] == text else len(exchanges)
        order = [*reversed(range(min(begin, len(exchanges)))), *reversed(range(begin, len(exchanges)))]
        wanted = text.casefold()
        for place in order:
            reply = exchanges[place].reply
            if wanted in exchanges[place].said.casefold() or (reply and wanted in reply.text.casefold()):
                self._found = (text, place)
                await self.stage.conversation.to_match(place, text)
                self.stage.keys.tell(f"message {place + 1} of {len(exchanges)}: the same again finds the one before")
                return self.stage.check_end()
        raise SettingError(f"No turn holds {text!r}.")

    def action_thoughts(self) -> None:
        """Open or fold all thinking."""
        self.stage.toggle_class("-thoughts")
        shown = "open" if self.stage.has_class("-thoughts") else "folded"
        self.stage.keys.tell(f"what the model thinks is {shown}")

    def action_inspect(self) -> None:
        """Step through the rounds of the replies so far."""
        if not self.chat.rounds:
            return self.stage.keys.tell("There are no rounds to inspect yet.")
        from eagle3chat.ui.screens.inspector import Inspector  # shown seldom, and the start would wait for it

        self.push_screen(Inspector(self.chat.rounds, self.glyphs, self.keymap))

    def trace(self, argument: str) -> None:
        """The marked text of the last reply, or of the one of that number.

        Raises:
            SettingError: There is no such reply.
        """
        count = len(self.chat.rounds)
        place = int(argument) - 1 if argument.isdecimal() else count - 1
        if not 0 <= place < count or (argument and not argument.isdecimal()):
            raise SettingError("There is no such reply with rounds.", f"There are {count}.")
        from eagle3chat.ui.screens.trace import Trace  # shown seldom, and the start would wait for it

        self.push_screen(Trace(self.chat.rounds, self.glyphs, place, self.keymap))


class TurnActions(Parts):
    """Turns, the draft, copying."""

    async def action_again(self) -> None:
        """Another reply to the last message."""
        await self.attempt(self.turns.again())

    async def action_continue(self) -> None:
        """The rest of a reply that was stopped."""
        await self.attempt(self.turns.go_on())

    async def action_alternative(self) -> None:
        """The next of the replies to the last message."""
        await self.attempt(self.turns.choose(""))

    async def action_delete(self) -> None:
        """Take the last turn away."""
        await self.attempt(self.turns.delete())

    async def action_new(self) -> None:
        """Begin a new conversation."""
        self.turns.leave()
        await self.attempt(self.host.renew())

    async def race(self, text: str) -> None:
        """Decode a prompt plainly and then with speculation.

        Raises:
            SettingError: There is nothing to race, or the worker is at something.
        """
        from eagle3chat.ui.screens.race import RaceScreen  # shown seldom, and the start would wait for it

        race = self.turns.race(text)
        await self.host.race(race)
        self.push_screen(RaceScreen(race, self.glyphs, self.host.stop, self.keymap))

    async def action_copy(self, what: str = "") -> None:
        """Copy the last reply."""
        try:
            name, text = source(self.chat, what)
        except SettingError as error:
            return self.complain(error)
        await self.put_away(name, text)

    async def put_away(self, name: str, text: str) -> None:
        """Copy a text, and tell where it went."""
        where = await asyncio.to_thread(copy, text, os.environ, self._ask_terminal)
        self.stage.keys.tell(f"{name}, {plural(len(text), 'character')}: {where}")

    def _ask_terminal(self, text: str) -> None:
        self.call_later(self.copy_to_clipboard, text)

    def action_editor(self) -> None:
        """Write the draft in the person's own editor, with the keys that were pressed before it."""
        self.stage.prompt.area.call_later(lambda: self.run_worker(self._edit(), group="editor", name="editor"))

    async def _edit(self) -> None:
        """A reply goes on meanwhile, unseen."""
        area = self.stage.prompt.area
        try:
            with self.batch_update(), self.suspend():
                text = await edited(area.expanded, os.environ)
        except SuspendNotSupported:
            self.stage.keys.tell("An editor needs a terminal.", error=True)
        except Eagle3Error as error:
            self.complain(error)
        else:
            area.write(text)
        self.refresh(layout=True)


class PaletteActions(Parts):
    """All commands, to be looked for; all themes."""

    def action_command_palette(self) -> None:
        """Show the commands."""
        from eagle3chat.ui.screens.palette import Palette  # shown seldom, and the start would wait for it

        if not isinstance(self.screen, Palette):
            self.push_screen(Palette(placeholder="a part of a command", id="--command-palette"))

    def search_themes(self) -> None:
        """Show the themes."""
        from textual.theme import ThemeProvider

        from eagle3chat.ui.screens.palette import Palette

        self.push_screen(Palette(providers=[ThemeProvider], placeholder="a part of a theme's name"))

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        for command in COMMANDS:
            title = f"/{command.name} {command.argument}".rstrip()
            key = f"{self.keymap.told(command.key)}: " if command.key else ""
            yield SystemCommand(title, key + command.help, partial(self._pick, command.name, command.argument))

    def _pick(self, name: str, argument: str) -> None:
        """A command from the palette: run it, or write it into the prompt where it needs a value."""
        if argument and not argument.startswith("["):
            self.stage.prompt.area.text = f"/{name} "
            self.stage.prompt.area.move_cursor((0, len(name) + 2))
            self.stage.prompt.area.focus()
        else:
            self.post_message(Submitted(f"/{name}"))
