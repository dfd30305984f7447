"""The chat's screen on a recording: it says the messages itself, and keys turn the time."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import ClassVar

from textual.binding import BindingType

from eagle3chat.engine.errors import SettingError
from eagle3chat.engine.requests import PairOptions
from eagle3chat.key_table import REPLAY
from eagle3chat.replay import Clockwork, ReplayWorker, recorded
from eagle3chat.transcript_codec import Conversation
from eagle3chat.ui.app import FLUSH_SECONDS, ChatApp
from eagle3chat.ui.bindings import bindings
from eagle3chat.ui.figures import number

READING_SECONDS = 1.0  # before a message of the user is sent
FASTER = 2.0  # times, by a key


class ReplayApp(ChatApp):
    """Shows a conversation as it went.

    Args:
        conversation: With a reply that has rounds.
        clockwork: The time of the replay.
        theme: A theme's name, "dark", "light" or "auto".
        marks: "full", "subtle" or "off".
        keys: Keys by the id of a binding, in place of its own.
        flush_seconds: Time between two drawings of a reply.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(REPLAY)

    def __init__(
        self,
        conversation: Conversation,
        clockwork: Clockwork,
        *,
        theme: str = "auto",
        marks: str = "full",
        keys: Mapping[str, str] | None = None,
        flush_seconds: float = FLUSH_SECONDS,
    ) -> None:
        super().__init__(
            PairOptions(),
            conversation.header.controls,
            keep_seed=True,
            system=conversation.system,
            theme=theme,
            marks=marks,
            keys=keys,
            flush_seconds=flush_seconds,
            worker_factory=partial(ReplayWorker, conversation, clockwork),
        )
        self._recording = conversation
        self._clockwork = clockwork
        self._ahead = deque(recorded(conversation))
        self._reads = False  # a message is about to be sent

    async def on_mount(self) -> None:
        self.stage.prompt.area.disabled = True
        await super().on_mount()
        self.screen.set_focus(None)
        self.call_later(self._tell)

    async def on_woken(self, message: object) -> None:
        await self.host.wake()
        self._go_on()
        if not self.stage.keys.notice:
            self._tell()

    def _go_on(self) -> None:
        """Send the next message soon, if the reply before it is over."""
        if self.chat.phase == "idle" and not self._reads and not self._clockwork.stands:
            if self._ahead:
                self._reads = True
                self.set_timer(READING_SECONDS / self._clockwork.speed, self._say)
            else:
                self._tell()

    async def _say(self, held: bool = False) -> None:
        """Send the next message; `held`: also while the time stands."""
        self._reads = False
        if self.chat.phase != "idle" or not self._ahead or (self._clockwork.stands and not held):
            return
        exchange = self._ahead.popleft()
        if exchange.reply is not None:
            self.host.set_controls(exchange.reply.controls)
        await self.host.say(exchange.said)

    def _tell(self) -> None:
        over = not self._ahead and self.chat.phase == "idle"
        state = "held: <replay.step> steps" if self._clockwork.stands else "runs"
        state = "over: <chat.restart> begins again" if over else state
        speed = number(self._clockwork.speed)
        self.stage.keys.tell("")
        keys = "<replay.hold> hold  <replay.faster>/<replay.slower> speed  <chat.stop> skip  <replay.quit> leave"
        self.stage.keys.show_waiting(self.keymap.told(f"replay x{speed} {state}   {keys}"))

    def action_hold(self) -> None:
        """Stand still, or go on."""
        self._clockwork.stand(not self._clockwork.stands)
        self._go_on()
        self._tell()

    def action_step(self) -> None:
        """Stand still, and show one more round."""
        if not self._clockwork.stands:
            self._clockwork.stand(True)
        elif self.chat.phase == "idle" and self._ahead:
            self.call_later(self._say, True)
        else:
            self._clockwork.step()
        self._tell()

    def action_speed(self, step: int) -> None:
        """Twice or half as fast."""
        try:
            self._clockwork.set_speed(self._clockwork.speed * FASTER**step)
        except SettingError as error:
            self.complain(error)
        else:
            self._tell()

    def action_stop(self) -> None:
        """To the end of the reply."""
        self.host.stop()

    async def action_restart(self) -> None:
        """From the beginning."""
        self._clockwork.hurry(True)
        self._ahead = deque(recorded(self._recording))
        await super().action_restart()
        await self.host.renew()
