"""The course of a chat: events of the worker to the stage, messages and settings to the worker. No keys, no layout."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from eagle3chat.engine.events import Event, Failed, Finished, Info, Loading, Prefill, Ready, Round
from eagle3chat.engine.requests import Controls, Say
from eagle3chat.transcript import Transcript
from eagle3chat.transcript_codec import Conversation as Past
from eagle3chat.transcript_codec import Setup
from eagle3chat.ui.chat import AGAIN, Chat
from eagle3chat.ui.link import Link
from eagle3chat.ui.pace import Pace
from eagle3chat.ui.race import Race
from eagle3chat.ui.record import Record
from eagle3chat.ui.widgets.stage import Stage


class Host:
    """Runs one chat at a time on one worker.

    Args:
        chat: State of the conversation.
        stage: What is seen of it.
        link: The line to the worker.
        record: What is kept of it.
        stream: Called with whether a reply streams, which needs `wake` at regular times.
    """

    def __init__(self, chat: Chat, stage: Stage, link: Link, record: Record, stream: Callable[[bool], None]) -> None:
        self.chat = chat
        self.pace = Pace()
        self._stage = stage
        self._link = link
        self._record = record
        self._race: Race | None = None
        self._stream = stream

    @property
    def replying(self) -> bool:
        """Whether a reply streams."""
        return self.chat.phase == "replying"

    async def wake(self) -> None:
        """Take the events that wait."""
        fetched = self._link.fetch()
        if self.replying:
            self._keep(fetched)
        self.pace.put(fetched)
        rounds: list[Round] = []
        for event in self.pace.due(time.monotonic()):
            if isinstance(event, Round) and self._race is None:
                rounds.append(event)
            else:
                self._take_rounds(rounds)
                rounds = []
                await self._take(event)
        self._take_rounds(rounds)
        await self._stage.flush()

    def _keep(self, events: list[Event]) -> None:
        """Rounds go into the transcript as they come, however late they are shown."""
        live = self.chat.reply
        if live is not None:
            self._record.rounds([live.numbered(event) for event in events if isinstance(event, Round)])

    def _take_rounds(self, rounds: list[Round]) -> None:
        if self.replying:
            self._stage.take([self.chat.add(round_) for round_ in rounds])

    async def _take(self, event: Event) -> None:
        match event:
            case Prefill() | Round() | Finished() if self._race is not None:
                await self._race_on(self._race, event)
            case Loading():
                self._stage.show_loading(event)
            case Ready(info=info):
                await self._opened(info)
            case Prefill() if self.replying:
                self.chat.prefilled(event)
                self._stage.show_prefill(event)
            case Finished() if self.replying:
                await self._end_reply(event)
                for line in event.notes:
                    await self._stage.conversation.add_note(line)
                await self._next()
            case Failed():
                await self._failed(event)

    async def _opened(self, info: Info) -> None:
        chat = self.chat
        chat.phase, chat.info = "idle", info
        if chat.controls.chain > info.max_chain and not info.fixed_chain:
            if info.max_chain:
                self._stage.keys.tell(f"The longest chain of this draft is {info.max_chain}.")
            chat.controls = replace(chat.controls, chain=info.max_chain)
        if info.max_chain == 0 and chat.controls.auto and not info.fixed_chain:
            chat.controls = replace(chat.controls, auto=False)
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
        if self._race is not None:
            await self._race_on(self._race, event)
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
        chat, live = self.chat, self.chat.reply
        assert live is not None
        self._stream(False)
        whole = live.whole(ended) if isinstance(ended, Finished) else None
        if whole is not None:
            chat.measured(whole)
            self._record.reply(whole)
        await self._stage.flush(all_parts=True)
        unanswered = chat.end_reply(whole)
        await self._stage.end_reply(whole or ended, None if unanswered else live.exchange)
        if not live.rounds and live.exchange.reply is not None:
            await self._stage.conversation.show_reply(live.exchange)  # there is no other one after all
        chat.phase = "idle"
        if unanswered:
            self._stage.prompt.give_back(unanswered)
        elif isinstance(ended, Finished) and ended.reason == "cancelled":
            self._give_back_queue()

    def _give_back_queue(self) -> None:
        """Messages that waited behind a reply that was stopped are drafts again, before the one that there is."""
        queue = self.chat.queue
        if queue:
            draft = self._stage.prompt.text
            self._stage.prompt.write("\n\n".join((*queue, draft) if draft.strip() else queue))
            queue.clear()
            self._stage.show_queue()

    async def say(self, text: str) -> None:
        """A message of the user: sent when the worker waits for one."""
        self.chat.queue.append(text)
        await self._next()

    async def _next(self) -> None:
        """Send the message that has waited longest, if the worker waits for one."""
        text = self.chat.queue.popleft() if self.chat.phase == "idle" and self.chat.queue else ""
        self._stage.show_queue()
        if text:
            self._record.user(text)
            await self.ask(self.chat.say(text), text)

    async def ask(self, say: Say, said: str | None = None) -> None:
        """Have a reply decoded: to a new message, or (None) another one or the rest of one to the last message."""
        assert self.chat.reply is not None
        self.pace.begin()
        await self._stage.begin_reply(said, self.chat.reply)
        self._stream(True)
        self._link.say(say)

    def stop(self) -> None:
        """End the reply or the race at its next round; what came stays."""
        if self.replying or self._race is not None:
            self.pace.hurry()
            self._link.cancel()

    async def race(self, race: Race) -> None:
        """Decode a prompt twice.

        Raises:
            SettingError: The worker is at something else.
        """
        self.chat.must_wait()
        self.chat.phase, self._race = "racing", race
        self.pace.begin()
        self.pace.hurry()
        self._stream(True)
        self._link.say(race.request())

    async def _race_on(self, race: Race, event: Event) -> None:
        if race.take(event):
            self._link.say(race.request())
        elif race.over:
            self._race = None
            self._stream(False)
            self.chat.phase = "idle"
            self._record.note("race", race.verdict())
            await self._stage.conversation.add_note(race.verdict())
            if not isinstance(event, Failed):
                await self._next()

    async def give_up(self) -> None:
        """The worker is about to be restarted, whatever it is at; the conversation stays."""
        self._link.fetch()
        self.pace.drop()
        gone = Failed("The worker was restarted.", "")
        if self._race is not None:
            await self._race_on(self._race, gone)
        if self.replying:
            await self._end_reply(gone)
        self.chat.phase, self.chat.info = "loading", None
        self._stage.show_loading(Loading("starting", None))

    def set_controls(self, controls: Controls) -> None:
        """Chain and sampling from the next round on."""
        self.chat.controls = controls
        if self.replying:
            self._link.adjust(controls)
            if self.chat.info is not None and not self.chat.info.adjusts:
                self._stage.keys.tell("This takes effect at the next reply.")
        self._record.settings(controls)
        self._stage.show_controls(controls, self.chat.info)

    def set_system(self, text: str) -> None:
        """The system message from the next message on."""
        self.chat.system = text
        self._record.system(text)

    @property
    def setup(self) -> Setup:
        """Limit of a reply and template."""
        return Setup(self.chat.max_new_tokens, self._link.options.template)

    def set_setup(self, setup: Setup) -> None:
        """The limit from the next message on; the template is the worker's."""
        self.chat.max_new_tokens = setup.max_new_tokens
        self._record.setup(setup)

    async def open(self, transcript: Transcript | None, past: Past) -> None:
        """Go on with another conversation, on the pair that is open.

        Args:
            transcript: Where it goes on; None: nowhere.
            past: What was said.

        Raises:
            SettingError: A reply streams, or a race runs.
        """
        self.chat.must_not_stream()
        chat, info = self.chat, self.chat.info
        chat.renew()
        self._stage.show_queue()
        self._record.switch(transcript, info)
        unanswered = chat.recall(past)
        chat.system = past.system
        if past.setup is not None:
            chat.max_new_tokens = past.setup.max_new_tokens
        longest = past.controls.chain if info is None else info.max_chain
        chat.controls = replace(
            past.controls,
            chain=min(past.controls.chain, longest),
            auto=past.controls.auto and (info is None or longest > 0),
        )
        self._stage.show_controls(chat.controls, info)
        await self._stage.renew()
        await self._stage.conversation.add_past(chat.exchanges)
        if info is not None and past.pair.model not in ("", info.model):
            was = f"{past.pair.model} wrote these replies; those to come are of {info.model}."
            await self._stage.conversation.add_note(was)
        self._stage.prompt.give_back(unanswered)

    async def renew(self) -> None:
        """Begin a new conversation.

        Raises:
            SettingError: A reply streams, or a race runs.
        """
        self.chat.must_not_stream()
        self._record.renew()
        self.chat.renew()
        self.set_controls(self.chat.controls)
        await self._stage.renew()
