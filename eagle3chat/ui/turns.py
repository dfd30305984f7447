"""What may be done with turns that are there: another reply, the rest of one, an earlier message anew, deletion.

Each is written into the transcript, so a conversation that goes on later is the one that was left. No keys.
"""

from __future__ import annotations

from eagle3chat.engine.errors import SettingError
from eagle3chat.engine.requests import Message
from eagle3chat.transcript_line import Exchange, answered
from eagle3chat.ui.chat import Chat
from eagle3chat.ui.figures import plural
from eagle3chat.ui.host import Host
from eagle3chat.ui.race import TOKENS, Race
from eagle3chat.ui.record import Record
from eagle3chat.ui.widgets.stage import Stage


class Turns:
    """Changes of one conversation.

    Every method raises SettingError where there is nothing to change, or the worker is at something.
    """

    def __init__(self, chat: Chat, stage: Stage, host: Host, record: Record) -> None:
        self._chat = chat
        self._stage = stage
        self._host = host
        self._record = record
        self.edited: int | None = None  # place of the message that is being written anew

    async def again(self) -> None:
        """Another reply to the last message, with a seed of its own; the old one stays among the replies."""
        self._last()
        self._chat.new_seed()
        self._host.set_controls(self._chat.controls)
        await self._host.ask(self._chat.again())
        if self._chat.controls.sampling.temperature == 0:
            self._stage.keys.tell("temperature 0: a new seed changes nothing, <chat.temperature.up> makes it warmer")

    async def go_on(self) -> None:
        """The rest of the last reply, where it was stopped or cut."""
        exchange = self._last()
        reply = exchange.reply
        if reply is None or not reply.rounds:
            raise SettingError("Nothing is known of how the last reply came, so it cannot go on.", "/again asks anew.")
        if reply.finished is not None and reply.finished.reason == "stop":
            raise SettingError("The last reply is complete: the model ended it.", "/again asks for another one.")
        self._record.go_on(exchange.chosen, reply.rounds)
        await self._host.ask(self._chat.go_on())

    async def choose(self, argument: str) -> None:
        """The reply of that number to the last message, or the next one."""
        exchange = self._last()
        count = len(exchange.replies)
        if count < 2:
            raise SettingError("There is one reply to the last message.", "<chat.again> asks for another one.")
        place = _number(argument, count, "reply") if argument else (exchange.chosen + 1) % count
        self._chat.choose(place)
        self._record.choose(place)
        await self._stage.conversation.show_reply(exchange)
        self._stage.conversation.to_end()
        self._stage.keys.tell(f"reply {place + 1} of {count}")

    async def delete(self) -> None:
        """Take the last message and its reply away; the message is in the prompt's history."""
        exchange = self._last()
        await self._back(len(self._chat.exchanges) - 1)
        self._stage.prompt.area.remember(exchange.said)
        self._stage.keys.tell("deleted: /undo brings it back")

    async def undo(self) -> None:
        """Take the last deletion back, or the last message that was written anew with what became of it."""
        self._chat.must_wait()
        self.leave()
        self._chat.undo()
        self._record.undo()
        await self._stage.conversation.clear()
        await self._stage.conversation.add_past(self._chat.exchanges)
        self._stage.keys.tell(f"as before: {plural(len(self._chat.exchanges), 'message')}")

    def edit(self, argument: str) -> None:
        """Put a message into the prompt, to go on from there with what becomes of it."""
        self._last()
        exchanges = self._chat.exchanges
        place = _number(argument, len(exchanges), "message") if argument else len(exchanges) - 1
        self._stage.prompt.write(exchanges[place].said)
        self.edited = place
        later = len(exchanges) - place - 1
        what = f"message {place + 1} of {len(exchanges)}"
        tail = f", {later} after it end" if later else ""
        keys = f"<prompt.send> goes on from here{tail}; <chat.stop> leaves it"
        self._stage.keys.tell(f"editing {what}: {keys}", seconds=None)

    def leave(self) -> bool:
        """No longer edit; whether a message was being edited."""
        was, self.edited = self.edited is not None, None
        return was

    async def say(self, text: str) -> None:
        """A message of the user: a new one, or in the place of the one that was edited."""
        if self.edited is not None:
            self._chat.must_wait()
            await self._back(self.edited)
            self.edited = None
        await self._host.say(text)

    def race(self, text: str) -> Race:
        """A race over a prompt, or over the last message."""
        chat = self._chat
        self._chat.must_wait()
        if not text:
            text = self._last().said
            before = answered(chat.exchanges[:-1], chat.info)
        else:
            before = chat.messages
        info, controls = chat.info, chat.controls
        assert info is not None
        if info.fixed_chain:
            raise SettingError("There is nothing to race against: the chain cannot be set.", f"{info.fixed_chain}.")
        if info.max_chain == 0:
            raise SettingError("There is nothing to race against: speculation is unavailable.", info.unavailable)
        if controls.chain == 0 and not controls.auto:
            keys = "<chat.chain.longer> makes it longer, <chat.chain.auto> finds it."
            raise SettingError("Both would decode plainly: the chain is off.", keys)
        return Race((*chat.head, *before, Message("user", text)), controls, chat.max_new_tokens or TOKENS)

    async def _back(self, keep: int) -> None:
        self._chat.back(keep)
        self._record.back(keep)
        await self._stage.conversation.back(keep)

    def _last(self) -> Exchange:
        self._chat.must_wait()
        if self._chat.last is None:
            raise SettingError("There is no turn yet.", "Write a message first.")
        return self._chat.last


def _number(argument: str, count: int, noun: str) -> int:
    """A place from 0 by its number from 1."""
    if not argument.isdecimal() or not 1 <= int(argument) <= count:
        raise SettingError(f"There is no {noun} {argument}.", f"Use 1 to {count}.")
    return int(argument) - 1
