"""The course of a chat: events of the worker to the stage, messages and settings to the worker. No keys, no layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from eagle3chat.engine.errors import SettingError
from eagle3chat.engine.events import Event, Failed, Finished, Info, Loading, Prefill, Ready, Round
from eagle3chat.engine.requests import Controls
from eagle3chat.transcript import to_messages
from eagle3chat.transcript_codec import Conversation as Past
from eagle3chat.ui.chat import Chat
from eagle3chat.ui.link import Link
from eagle3chat.ui.record import Record
from eagle3chat.ui.widgets.stage import Stage

AGAIN = "F5 or /restart starts it again."


class Host:
    """Runs one chat at a time on one worker.

    Args:
        chat: State of the conversation.
        stage: What is seen of it.
        link: The line to the worker.
        record: What is kept of it.
        past: A conversation to go on with; its turns count from `Ready` on.
        stream: Called with whether a reply streams, which needs `wake` at regular times.
    """

    def __init__(
        self, chat: Chat, stage: Stage, link: Link, record: Record, past: Past | None, stream: Callable[[bool], None]
    ) -> None:
        self.chat = chat
        self._stage = stage
        self._link = link
        self._record = record
        self._past = past
        self._stream = stream

    @property
    def replying(self) -> bool:
        """Whether a reply streams."""
        return self.chat.phase == "replying"

    async def wake(self) -> None:
        """Take the events that wait."""
        rounds: list[Round] = []
        for event in self._link.fetch():
            if isinstance(event, Round):
                rounds.append(event)
            else:
                self._take_rounds(rounds)
                rounds = []
                await self._take(event)
        self._take_rounds(rounds)
        await self._stage.flush()

    def _take_rounds(self, rounds: list[Round]) -> None:
        if self.replying:
            for round_ in rounds:
                self.chat.add(round_)
            self._record.rounds(rounds)
            self._stage.take(rounds)

    async def _take(self, event: Event) -> None:
        match event:
            case Loading():
                self._stage.show_loading(event)
            case Ready(info=info):
                await self._opened(info)
            case Prefill() if self.replying:
                self.chat.prefilled(event)
                self._stage.show_prefill(event)
            case Finished() if self.replying:
                self._record.reply(event)
                await self._end_reply(event)
                await self._next()
            case Failed():
                await self._failed(event)

    async def _opened(self, info: Info) -> None:
        chat = self.chat
        chat.phase, chat.info = "idle", info
        if chat.controls.chain > info.max_chain:
            if info.max_chain:
                self._stage.keys.tell(f"The longest chain of this draft is {info.max_chain}.")
            chat.controls = replace(chat.controls, chain=info.max_chain)
        if info.max_chain == 0 and chat.controls.auto:
            chat.controls = replace(chat.controls, auto=False)
        if self._past is not None:
            chat.messages = [m for m in to_messages(self._past, info) if m.role != "system"]
            self._past = None
        self._record.opened(info, chat.controls, chat.system)
        self._stage.show_pair(info)
        self._stage.show_controls(chat.controls, info)
        for line in info.checks:
            await self._stage.conversation.add_note(line)
        for line in info.warnings:
            await self._stage.conversation.add_note(line, error=True)
        await self._next()

    async def _failed(self, event: Failed) -> None:
        if self.chat.phase == "down":
            return  # it has been told
        gone = event.fatal or self.chat.phase == "loading"
        if self.replying:
            self._record.note("failed", event.message)
            await self._end_reply(event)
        if gone:
            self.chat.phase = "down"
            self._stage.show_down()
        parts = (event.message, event.fix, AGAIN if gone else "")
        await self._stage.conversation.add_note(" ".join(part for part in parts if part), error=True)
        await self._next()

    async def _end_reply(self, ended: Finished | Failed) -> None:
        """The reply is over and the worker waits; a message without an answer becomes the draft again."""
        self._stream(False)
        await self._stage.flush(all_parts=True)
        unanswered = self.chat.end_reply(ended if isinstance(ended, Finished) else None)
        await self._stage.end_reply(ended)
        self.chat.phase = "idle"
        stopped = isinstance(ended, Finished) and ended.reason == "cancelled"
        if unanswered:
            self._stage.prompt.give_back(unanswered)
        elif stopped and self.chat.queue and not self._stage.prompt.text:
            self._stage.prompt.give_back("\n\n".join(self.chat.queue))
            self.chat.queue.clear()
            self._stage.show_queue()

    async def say(self, text: str) -> None:
        """A message of the user: sent when the worker waits for one."""
        self.chat.queue.append(text)
        await self._next()

    async def _next(self) -> None:
        """Send the message that has waited longest, if the worker waits for one."""
        text = self.chat.queue.popleft() if self.chat.phase == "idle" and self.chat.queue else ""
        self._stage.show_queue()
        if not text:
            return
        self._record.user(text)
        await self._stage.begin_reply(text)
        self._stream(True)
        self._link.say(self.chat.say(text))

    def stop(self) -> None:
        """End the reply at its next round; what came stays."""
        if self.replying:
            self._link.cancel()

    async def give_up(self) -> None:
        """The worker is about to be restarted, whatever it is at; the conversation stays."""
        self._link.fetch()
        if self.replying:
            await self._end_reply(Failed("The worker was restarted.", ""))
        self.chat.phase, self.chat.info = "loading", None
        self._stage.show_loading(Loading("starting", None))

    def set_controls(self, controls: Controls) -> None:
        """Chain and sampling from the next round on."""
        self.chat.controls = controls
        if self.replying:
            self._link.adjust(controls)
        self._record.settings(controls)
        self._stage.show_controls(controls, self.chat.info)

    def set_system(self, text: str) -> None:
        """The system message from the next message on."""
        self.chat.system = text
        self._record.system(text)

    async def renew(self) -> None:
        """Begin a new conversation.

        Raises:
            SettingError: A reply streams.
        """
        if self.replying:
            raise SettingError("A reply is streaming.", "Esc stops it; then begin anew.")
        self._record.renew()
        self.chat.renew()
        self._past = None
        self.set_controls(self.chat.controls)
        await self._stage.renew()
