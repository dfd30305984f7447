"""The chat as lines that are only ever added: for screen readers, braille displays and terminals of few abilities.

No screen is drawn, nothing is overwritten, no colour and no meter: a reply comes word by word, and one line at its
end says what it was. Knows the worker by its handle alone.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import replace
from typing import TextIO

from eagle3chat.engine.errors import Eagle3Error, SettingError
from eagle3chat.engine.events import Event, Failed, Finished, Info, Loading, Prefill, Ready, Round
from eagle3chat.engine.requests import PairOptions, Say
from eagle3chat.key_map import USUAL
from eagle3chat.transcript_codec import Conversation as Past
from eagle3chat.transcript_line import Exchange
from eagle3chat.ui.chat import Chat
from eagle3chat.ui.clean import clean
from eagle3chat.ui.commands import COMMANDS, Call, changed, is_command, parse
from eagle3chat.ui.figures import chain_state, plural, under_reply
from eagle3chat.ui.link import Worker, WorkerFactory
from eagle3chat.ui.marks import Marker
from eagle3chat.ui.record import Record
from eagle3chat.ui.thinking import Divider, Part, WordCount, answer

KNOWN = (
    *("chain", "temp", "topp", "topk", "minp", "penalty", "seed", "system"),
    *("again", "continue", "new", "restart", "help", "quit"),
)
"""Commands that make sense without a screen."""


class PlainChat:
    """One conversation on one worker.

    Args:
        chat: Its state.
        record: What is kept of it.
        options: The pair to open.
        factory: Makes the worker.
        read: Asks for a line; raises EOFError at the end of the input, KeyboardInterrupt at ctrl+c.
        out: Where lines go.
    """

    def __init__(
        self,
        chat: Chat,
        record: Record,
        options: PairOptions,
        factory: WorkerFactory,
        read: Callable[[str], str],
        out: TextIO,
    ) -> None:
        self.chat = chat
        self._record = record
        self._read = read
        self._out = out
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._worker: Worker = factory(options, self._events.put)

    def run(self, past: Past | None = None) -> int:
        """Chat until the person leaves; the exit code."""
        try:
            if past is not None:
                self._recall(past)
            if not self._open(self._worker.start):
                return 1
            while (line := self._ask()) is not None:
                try:
                    if is_command(line) and not self._command(parse(line)):
                        break
                    if not is_command(line) and line.strip():
                        self._say(line)
                except Eagle3Error as error:
                    self._tell(USUAL.told(str(error)))
        finally:
            self._worker.close()
        return 0

    def _recall(self, past: Past) -> None:
        unanswered = self.chat.recall(past)
        for exchange in self.chat.exchanges:
            self._tell(f"you: {exchange.said}")
            self._tell(f"model: {answer(exchange.reply) if exchange.reply else ''}")
        if unanswered:
            self._tell(f"this message has no reply yet: {unanswered}")

    def _open(self, work: Callable[[], None]) -> bool:
        """Open the pair; whether it is open."""
        self.chat.phase, self.chat.info = "loading", None
        try:
            work()
        except Eagle3Error as error:
            self._tell(str(error))
            return False
        stage = ""
        while True:
            match self._events.get():
                case Loading(stage=now) if now != stage:
                    stage = now
                    self._tell(f"{now} ...")
                case Ready(info=info):
                    self._opened(info)
                    return True
                case Failed() as failed:
                    self.chat.phase = "down"
                    self._tell(f"{failed.message} {failed.fix}")
                    return False

    def _opened(self, info: Info) -> None:
        chat = self.chat
        chat.phase, chat.info = "idle", info
        if not info.fixed_chain:
            auto = chat.controls.auto and info.max_chain > 0
            chat.controls = replace(chat.controls, chain=min(chat.controls.chain, info.max_chain), auto=auto)
        self._record.opened(info, chat.controls, chat.system)
        for line in (*info.checks, *info.warnings):
            self._tell(line)
        state = chain_state(info, chat.controls)
        self._tell(f"{info.model} is open, {state}. Enter sends, ctrl+c stops a reply, /help lists commands.")

    def _ask(self) -> str | None:
        """A line of the person; None: they leave."""
        try:
            return self._read("you: ")
        except (EOFError, KeyboardInterrupt):
            self._out.write("\n")
            return None

    def _command(self, call: Call) -> bool:
        """Do what a command says; whether the chat goes on.

        Raises:
            SettingError: It is not possible.
        """
        name, chat = call.command.name, self.chat
        if name not in KNOWN:
            raise SettingError(f"/{name} needs the screen.", "Start without --accessible for it.")
        controls = changed(chat.controls, name, call.argument, chat.info)
        if controls is not None:
            chat.controls = controls
            chat.keep_seed |= name == "seed"
            self._record.settings(controls)
            self._tell(f"{chain_state(chat.info, controls)}, temperature {controls.sampling.temperature:g}")
            return True
        match name:
            case "system":
                chat.system = call.argument
                self._record.system(call.argument)
            case "again" | "continue":
                self._once_more(self._last(), goes_on=name == "continue")
            case "new":
                self._record.renew()
                chat.renew()
                self._tell("a new conversation")
            case "restart":
                self._open(self._worker.restart)
            case "help":
                for command in COMMANDS:
                    if command.name in KNOWN:
                        self._tell(f"/{command.name} {command.argument}: {command.help}".replace(" :", ":"))
        return name != "quit"

    def _last(self) -> Exchange:
        self._must_be_open()
        if self.chat.last is None:
            raise SettingError("There is no turn yet.", "Write a message first.")
        return self.chat.last

    def _must_be_open(self) -> None:
        if self.chat.phase != "idle":
            raise SettingError("There is no worker.", "/restart starts it again.")

    def _say(self, text: str) -> None:
        self._must_be_open()
        self._record.user(text)
        self._reply(self.chat.say(text))

    def _once_more(self, exchange: Exchange, *, goes_on: bool) -> None:
        """Another reply, or the rest of one."""
        reply = exchange.reply
        if not goes_on:
            self.chat.new_seed()
            self._record.settings(self.chat.controls)
            return self._reply(self.chat.again())
        if reply is None or not reply.rounds or (reply.finished is not None and reply.finished.reason == "stop"):
            raise SettingError("The last reply is complete.", "/again asks for another one.")
        self._record.go_on(exchange.chosen, reply.rounds)
        self._reply(self.chat.go_on())

    def _reply(self, say: Say) -> None:
        """Show a reply as it comes, whole words at a time."""
        self._worker.say(say)
        self._out.write("model: ")
        words = _Words(self._out)
        ended: Finished | Failed | None = None
        while ended is None:
            try:
                event = self._events.get()
            except KeyboardInterrupt:
                self._worker.cancel()
                continue
            match event:
                case Round():
                    self._record.rounds([self.chat.add(event)])
                    words.take(event)
                case Prefill():
                    self.chat.prefilled(event)
                case Finished() | Failed():
                    ended = event
        live = self.chat.reply
        assert live is not None
        whole = live.whole(ended) if isinstance(ended, Finished) else None
        words.end(whole.text if whole else "")
        if whole is not None:
            self._record.reply(whole)
        unanswered = self.chat.end_reply(whole)
        fatal = isinstance(ended, Failed) and ended.fatal
        self.chat.phase = "down" if fatal else "idle"
        if isinstance(ended, Failed):
            self._record.note("failed", ended.message)
            self._tell(f"{ended.message} {ended.fix}" + (" /restart starts the worker again." if fatal else ""))
        elif whole is not None:
            for line in whole.notes:
                self._tell(line)
            self._tell(", ".join(under_reply(whole)))
        if unanswered:
            self._tell("The message has no reply; send it again.")

    def _tell(self, text: str) -> None:
        self._out.write(f"{clean(text).rstrip()}\n")
        self._out.flush()


class _Words:
    """Writes text word by word, without its thinking."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._marker = Marker()
        self._divider = Divider()
        self._held = ""
        self._thoughts = WordCount()

    def take(self, round_: Round) -> None:
        """More of the reply."""
        for part in self._divider.feed(self._marker.take(round_)):
            self._write(part)

    def end(self, text: str) -> None:
        """The end of it."""
        for part in self._divider.feed(self._marker.rest(text)) + self._divider.rest():
            self._write(part)
        self._out.write(clean(self._held) + "\n")
        if self._thoughts.words:
            self._out.write(f"thought before: {plural(self._thoughts.words, 'word')}\n")
        self._out.flush()

    def _write(self, part: Part) -> None:
        if part.thought:
            return self._thoughts.add(part.piece.text)
        held = self._held + part.piece.text
        at = max(held.rfind(" "), held.rfind("\n")) + 1
        self._held = held[at:]
        if at:
            self._out.write(clean(held[:at]))
            self._out.flush()
