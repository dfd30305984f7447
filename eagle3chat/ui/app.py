"""The chat on screen: keys and commands in, events of the worker out. Knows the worker by its handle alone.

One timer draws a reply, five or ten times a second, and runs only while one streams: the worker shares the machine,
and where that has few cores every frame costs tokens.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Mapping
from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.screen import ModalScreen, Screen
from textual.timer import Timer
from textual.widgets import TextArea

from eagle3chat.engine.errors import Eagle3Error, SettingError
from eagle3chat.engine.requests import Controls, PairOptions
from eagle3chat.engine.worker import DecodeWorker
from eagle3chat.key_map import checked_keys
from eagle3chat.key_table import CHAT
from eagle3chat.transcript import Transcript
from eagle3chat.transcript_codec import Conversation as Past
from eagle3chat.ui.actions import PaletteActions
from eagle3chat.ui.attach import attached
from eagle3chat.ui.bindings import CHAT_ONLY, bindings
from eagle3chat.ui.chat import Chat
from eagle3chat.ui.chat_screen import ChatScreen
from eagle3chat.ui.command_actions import CommandActions
from eagle3chat.ui.commands import is_command, parse
from eagle3chat.ui.glyphs import pick_glyphs
from eagle3chat.ui.history import History
from eagle3chat.ui.host import Host
from eagle3chat.ui.input import safe_driver
from eagle3chat.ui.link import Link, WorkerFactory
from eagle3chat.ui.messages import BackgroundTold, CopyWanted, Submitted, Woken
from eagle3chat.ui.record import Record
from eagle3chat.ui.sources import source_of
from eagle3chat.ui.theme import DARK, LIGHT, kind_colours, pick_theme
from eagle3chat.ui.turns import Turns
from eagle3chat.ui.warm import warm
from eagle3chat.ui.widgets.prompt_area import PromptArea
from eagle3chat.ui.widgets.stage import Stage

CORES = os.cpu_count() or 1
FLUSH_SECONDS = (
    0.33 if CORES <= 2 else 0.2 if CORES <= 4 else 0.1
)  # between drawings: they take cores from the decoding
ARM_SECONDS = 3.0  # in which a second ctrl+c leaves
MARKS = ("full", "subtle", "off")


class ChatApp(CommandActions, PaletteActions, App[int]):
    """The terminal chat.

    Args:
        options: The pair to open.
        controls: Chain and sampling to begin with.
        keep_seed: The seed was asked for, so a new conversation keeps it.
        transcript: Where the conversation is written; None: nowhere.
        max_new_tokens: Limit of each reply; None: to the end of the context.
        system: The system message.
        past: A conversation to go on with.
        theme: A theme's name, "dark", "light" or "auto".
        marks: One of MARKS.
        history: What was written in the prompt before.
        keys: Keys by the id of a binding, in place of its own.
        flush_seconds: Time between two drawings of a reply.
        worker_factory: Makes the decode worker.

    Raises:
        SettingError: There is no such theme, no such way of marking, or no such key.
    """

    TITLE = "eagle3chat"
    CSS_PATH = "chat.tcss"
    ENABLE_COMMAND_PALETTE = True
    HORIZONTAL_BREAKPOINTS: list[tuple[int, str]] | None = [(0, "-narrow"), (81, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS: list[tuple[int, str]] | None = [(0, "-short"), (20, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = bindings(CHAT)

    def __init__(
        self,
        options: PairOptions,
        controls: Controls,
        *,
        keep_seed: bool = False,
        transcript: Transcript | None = None,
        max_new_tokens: int | None = None,
        system: str = "",
        past: Past | None = None,
        theme: str = "auto",
        marks: str = "full",
        history: History | None = None,
        keys: Mapping[str, str] | None = None,
        flush_seconds: float = FLUSH_SECONDS,
        worker_factory: WorkerFactory = DecodeWorker,
    ) -> None:
        super().__init__(driver_class=safe_driver(), ansi_color=True if "NO_COLOR" in os.environ else None)
        self._wanted_theme = theme
        pick_theme(theme, os.environ, no_color=self.no_color)  # refused before the terminal is taken
        if marks not in MARKS:
            raise SettingError(f"Marks cannot be {marks!r}.", f"Use {', '.join(MARKS)}.")
        self._marks = marks
        self._suited = ""  # the theme that was picked for the terminal
        self._flush_seconds = flush_seconds
        self._timer: Timer | None = None
        self._armed_at = -ARM_SECONDS  # when ctrl+c last offered to leave
        self._home: asyncio.AbstractEventLoop | None = None
        self._left_with = 0  # exit code of a signal
        self._leaving = False
        self.crash: BaseException | None = None  # a mistake of ours that ended the screen
        self._past = past
        self.glyphs = pick_glyphs(os.environ)
        self.chat = Chat(controls, max_new_tokens, system, keep_seed=keep_seed)
        self.keymap = checked_keys(keys or {})
        self.set_keymap(dict(self.keymap.changed))
        self.stage = Stage(self.glyphs, self.chat, history or History(), self.keymap, classes=f"-marks-{marks}")
        self.link = Link(worker_factory, options, self._wake)
        self.record = Record(transcript, options.bundle, lambda text: self.stage.keys.tell(text, error=True))
        self.host = Host(self.chat, self.stage, self.link, self.record, self._stream)
        self.turns = Turns(self.chat, self.stage, self.host, self.record)

    def leave(self, code: int) -> None:
        """End the screen with an exit code; in a handler of signals, at any time."""
        self._left_with = code
        if self._home is not None and not self._home.is_closed():
            self._home.call_soon_threadsafe(self.exit, None, code)

    def exit(self, *args: Any, **kwargs: Any) -> None:
        """End the screen."""
        self._leaving = True
        super().exit(*args, **kwargs)

    def _handle_exception(self, error: Exception) -> None:
        """A mistake of ours ends the screen; who ran it tells it. The toolkit would print a traceback with the values
        of variables. While the screen is left, work on parts of it that are gone fails: nobody misses it."""
        if self.is_headless:
            return super()._handle_exception(error)
        if not self._leaving:
            self.crash = self.crash or getattr(error, "error", None) or error
        self._close_messages_no_wait()

    def panic(self, *renderables: object) -> None:
        """The same for a thread of the toolkit's."""
        if self.is_headless:
            return super().panic(*renderables)  # type: ignore[arg-type]
        self._handle_exception(RuntimeError("a thread of the screen failed"))

    def get_default_screen(self) -> Screen[None]:
        return ChatScreen()

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return kind_colours(self.current_theme)

    def compose(self) -> ComposeResult:
        yield self.stage

    async def on_mount(self) -> None:
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self._theme_that_suits(None)
        self._home = asyncio.get_running_loop()
        if self._left_with:
            return self.exit(None, self._left_with)
        if self._past is not None:
            self.stage.prompt.give_back(self.chat.recall(self._past))
            await self.stage.conversation.add_past(self.chat.exchanges)
        self._timer = self.set_interval(self._flush_seconds, self._wake, pause=True)
        self.stage.prompt.area.focus()
        self.stage.prompt.area.cursor_blink = self.animation_level != "none"
        if not self.is_headless:
            self.call_after_refresh(self._painted)
        self.run_worker(self.link.start(), group="worker", name="start")

    def _painted(self) -> None:
        gc.freeze()  # to look through what the start made takes 40 ms of a reply
        self.run_worker(asyncio.to_thread(warm), group="warm", name="warm")

    def _theme_that_suits(self, light: bool | None) -> None:
        """The wanted theme, or one for the terminal, unless a person chose another meanwhile."""
        if light is None or (self._wanted_theme == "auto" and self.theme == self._suited):
            few = not self.is_headless and self.console.color_system in (None, "standard")
            found = pick_theme(self._wanted_theme, os.environ, no_color=self.no_color, light=light, few=few)
            self.theme = self._suited = found

    def on_background_told(self, message: BackgroundTold) -> None:
        self._theme_that_suits(message.light)

    async def on_copy_wanted(self, message: CopyWanted) -> None:
        await self.put_away(message.name, source_of(self.chat, message.text))

    def _wake(self) -> None:
        """Have the events fetched; on any thread."""
        self.post_message(Woken())

    async def on_woken(self, message: Woken) -> None:
        if not self._leaving:
            await self.host.wake()

    def _stream(self, on: bool) -> None:
        assert self._timer is not None
        if on:
            self._timer.resume()
        else:
            self._timer.pause()

    async def on_submitted(self, message: Submitted) -> None:
        text = message.text.strip()
        self.stage.keys.tell("")
        try:
            if is_command(text):
                await self.perform(parse(text))
            else:
                await self.turns.say(attached(message.text))
        except Eagle3Error as error:
            self.complain(error)
            self.stage.prompt.give_back(message.text)  # to mend it

    # Keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return not (action in CHAT_ONLY and isinstance(self.screen, ModalScreen))

    def action_stop(self) -> None:
        """Stop the reply; what came stays. Without one: leave the message that is being edited."""
        self.stage.keys.tell("")
        if self.host.replying:
            self.host.stop()
        elif self.turns.leave():
            self.stage.prompt.area.take()
        self.stage.prompt.area.focus()

    async def action_interrupt(self) -> None:
        """Copy, else stop, else clear the prompt, else leave when pressed twice."""
        area, keys = self.stage.prompt.area, self.stage.keys
        selected = self.screen.get_selected_text() or area.selected_text
        if selected:
            await self.put_away("the selection", selected)
        elif self.host.replying:
            self.action_stop()
        elif area.text:
            self.turns.leave()
            area.take()
            self.call_later(keys.tell, "cleared: up brings it back")
        elif asyncio.get_running_loop().time() - self._armed_at < ARM_SECONDS:
            self.exit()
        else:
            self._armed_at = asyncio.get_running_loop().time()
            keys.tell("<chat.interrupt> again leaves")

    async def action_quit(self) -> None:
        self.exit()

    def action_help(self) -> None:
        """Show keys, commands and meanings."""
        from eagle3chat.ui.screens.help import Help  # shown seldom, and the start would wait for it

        self.push_screen(Help(self.glyphs, self.keymap, self.chat.info))

    def action_marks(self) -> None:
        """The next way of marking tokens in the reply."""
        self._marks = MARKS[(MARKS.index(self._marks) + 1) % len(MARKS)]
        self._show_marks()
        self.stage.keys.tell(f"marks {self._marks}")

    def _show_marks(self) -> None:
        for name in MARKS:
            self.stage.set_class(name == self._marks, f"-marks-{name}")

    async def action_restart(self) -> None:
        """End the worker and start another; the conversation stays."""
        await self.host.give_up()
        self.run_worker(self.link.restart(), group="worker", name="restart")

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        if isinstance(area := event.text_area, PromptArea):
            if area.text:
                self._armed_at = -ARM_SECONDS  # who types does not mean to leave
            self.stage.keys.show_hint(area.text, area.before)
