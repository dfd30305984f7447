"""All parts of the chat in their places, and which of them an event concerns. Decides nothing."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Vertical

from eagle3chat.engine.events import Failed, Finished, Info, Loading, Prefill, Round
from eagle3chat.engine.requests import Controls
from eagle3chat.key_map import KeyMap
from eagle3chat.transcript_line import Exchange
from eagle3chat.ui.chat import Chat, LiveReply
from eagle3chat.ui.glyphs import Glyphs
from eagle3chat.ui.history import History
from eagle3chat.ui.legend import in_a_row
from eagle3chat.ui.tally import Tally
from eagle3chat.ui.widgets.conversation import Conversation
from eagle3chat.ui.widgets.header import Header
from eagle3chat.ui.widgets.keys import Keys
from eagle3chat.ui.widgets.lane import Lane
from eagle3chat.ui.widgets.meter import Meter
from eagle3chat.ui.widgets.prompt import Prompt
from eagle3chat.ui.widgets.reply import Reply
from eagle3chat.ui.widgets.rule import Rule
from eagle3chat.ui.widgets.welcome import Welcome

LANE_EVERY = 2  # flushes of text between two updates of lane and meter
HEADER_EVERY = 5  # what is between two changed places is drawn as well, and the header is far from the rest


class Stage(Vertical):
    """Header, conversation, lane, meter, prompt, keys."""

    BLANK = True  # nothing of its own to draw

    def __init__(self, glyphs: Glyphs, chat: Chat, history: History, keymap: KeyMap, classes: str) -> None:
        super().__init__(classes=classes)
        self._glyphs = glyphs
        self._chat = chat
        self._keymap = keymap
        self._header = Header(glyphs)
        self._welcome = Welcome(glyphs)
        self._lane = Lane(glyphs)
        self._meter = Meter(glyphs, chat.controls)
        self._reply: Reply | None = None
        self._rounds: list[Round] = []  # not in the lane yet
        self._flushes = 0
        self.conversation = Conversation(glyphs, self._welcome, exchanges=lambda: chat.exchanges, keymap=keymap)
        self.prompt = Prompt(glyphs, history)
        self.keys = Keys(keymap)

    def compose(self) -> ComposeResult:
        yield self._header
        yield Rule(self._glyphs.rule, id="top-rule")
        yield self.conversation
        yield Rule(self._glyphs.rule, "rounds", id="lane-rule")
        yield self._lane
        yield self._meter
        yield self.prompt
        yield self.keys

    def show_loading(self, event: Loading) -> None:
        """The pair is being opened."""
        self._header.show_loading(event)
        self._welcome.show_loading(event)

    def show_pair(self, info: Info) -> None:
        """The pair is open."""
        self._header.show_pair(info)
        self._welcome.show_pair(info)
        self._lane.show_legend(in_a_row(info, self._glyphs))
        self._lane.show_status("")

    def show_down(self) -> None:
        """There is no worker."""
        self._header.show_down(self._keymap.told("the worker has stopped: <chat.restart> starts it again"))
        self._welcome.show_down()
        self._lane.show_status("")

    def show_controls(self, controls: Controls, info: Info | None) -> None:
        """Chain and sampling as they are now."""
        self._meter.show_controls(controls, info)
        self.keys.show_chain(info is None or (bool(info.max_chain) and not info.fixed_chain))

    def show_queue(self) -> None:
        """Messages that wait for the worker."""
        waiting = self._chat.queue
        more = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
        self.keys.show_waiting(f"waits for the worker: {waiting[0]}{more}" if waiting else "")

    async def begin_reply(self, said: str | None, begun: LiveReply) -> None:
        """The place of a reply, behind a message of the user unless it is another reply or the rest of one."""
        if said is not None:
            await self.conversation.add_user(said)
        self._reply = await self.conversation.begin_reply()
        self._lane.clear()
        self._meter.show_tally(begun.tally)
        self._rounds, self._flushes = [], 0
        if begun.rounds:
            self._reply.take(begun.rounds)
            await self._reply.flush()
        if said is None:
            self.conversation.to_end()
        self.keys.show_replying(True)
        self.prompt.area.cursor_blink = False  # its timer would repaint all along the reply

    def show_prefill(self, event: Prefill) -> None:
        """The prompt is being read."""
        reused = f", {event.reused} of them kept from before" if event.reused else ""
        self._lane.show_status(f"reading the prompt: {event.done} of {event.total} tokens{reused}")
        self._header.show_used(event.done)

    def take(self, rounds: Sequence[Round]) -> None:
        """Rounds, drawn at the next flush."""
        if self._reply is not None and rounds:
            self._reply.take(rounds)
            self._rounds.extend(rounds)

    async def flush(self, all_parts: bool = False) -> None:
        """Draw the text that waits, and every other time the figures."""
        if self._reply is None or not (self._rounds or all_parts):
            return
        await self._reply.flush()
        self._flushes += 1
        if all_parts or self._flushes % LANE_EVERY == 1:
            self._lane.show_rounds(self._rounds)
            self._rounds = []
            if self._chat.reply is not None:
                self._meter.show_tally(self._chat.reply.tally)
        if all_parts or self._flushes % HEADER_EVERY == 0:
            self._header.show_used(self._chat.used)
        self.check_end()

    def check_end(self) -> None:
        """Tell when the end of the conversation is out of sight, once the layout has settled."""
        if self.conversation.follows:
            self.keys.show_more(False)
        else:
            self.call_after_refresh(lambda: self.keys.show_more(not self.conversation.at_end))

    async def end_reply(self, ended: Finished | Failed, exchange: Exchange | None) -> None:
        """The reply is complete, or what came of it is all that there will be; None: there is nothing of it."""
        reply, self._reply = self._reply, None
        if reply is None:
            return
        under = self.conversation.under(ended, exchange)
        await reply.finish(ended.text if isinstance(ended, Finished) else "", under)
        if not self._lane.has_rounds:
            self._lane.show_status("")
        self.keys.show_replying(False)
        self.check_end()
        self.prompt.area.cursor_blink = self.app.animation_level != "none"

    def show_slow(self, rate: float) -> None:
        """Rounds a second that are shown; 0: as they come."""
        self._meter.show_slow(rate)

    async def renew(self) -> None:
        """Empty the conversation."""
        await self.conversation.clear()
        self._lane.clear()
        self._meter.show_tally(Tally())
        self._header.show_used(0)
