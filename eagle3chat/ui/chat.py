"""The conversation as the screen holds it: exchanges, controls, what the worker is at. No widget, no thread."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from eagle3chat.engine.errors import SettingError
from eagle3chat.engine.events import Finished, Info, Prefill, Round
from eagle3chat.engine.requests import Controls, Message, Say
from eagle3chat.transcript_codec import Conversation as Past
from eagle3chat.transcript_codec import PairName, Reply, reply_ids, reply_text
from eagle3chat.transcript_line import Exchange, answered, exchanges, message_of
from eagle3chat.ui.tally import Tally

NOT_KNOWN = -1
AGAIN = "<chat.restart> or /restart starts it again."
FOUND = 12  # rounds whose chains tell the length in use

Phase = Literal["loading", "idle", "replying", "racing", "down"]
"""What the worker is at: opening the pair, waiting, decoding a reply, decoding one twice, gone."""


@dataclass(slots=True)
class LiveReply:
    """A reply on its way."""

    exchange: Exchange
    goes_on: bool = False  # with the reply that counts, which it then replaces
    rounds: list[Round] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    begun: int = 0  # rounds that it began with

    def numbered(self, round_: Round) -> Round:
        """A round as the reply numbers it: behind those that it began with."""
        return replace(round_, index=self.begun + round_.index) if self.begun else round_

    def add(self, round_: Round) -> Round:
        """Take a round of the worker; as the reply numbers it."""
        round_ = self.numbered(round_)
        self.rounds.append(round_)
        self.tally.add(round_)
        return round_

    def whole(self, finished: Finished) -> Finished:
        """How the reply ended, with the usage of all its rounds."""
        self.tally.told = finished.usage.told
        return replace(finished, usage=self.tally.usage(finished.usage)) if self.begun else finished


class Chat:
    """State of one conversation, and the rules of what may happen next.

    Args:
        controls: Chain and sampling to begin with.
        max_new_tokens: Limit of each reply; None: to the end of the context.
        system: The system message; empty: none.
        keep_seed: The seed was asked for, not drawn.
    """

    def __init__(
        self, controls: Controls, max_new_tokens: int | None = None, system: str = "", keep_seed: bool = False
    ) -> None:
        self.controls = controls
        self.keep_seed = keep_seed
        self.max_new_tokens = max_new_tokens
        self.system = system
        self.exchanges: list[Exchange] = []
        self.rounds: list[Sequence[Round]] = []  # of each reply that counts and has any; the same list for good
        self.phase: Phase = "loading"
        self.info: Info | None = None
        self.queue: deque[str] = deque()  # messages that wait for the worker
        self.reply: LiveReply | None = None
        self.used = 0  # positions of the context, or NOT_KNOWN
        self._undone: list[tuple[int, list[Exchange]]] = []  # what was kept, and all that there was before
        self._found: deque[int] = deque(maxlen=FOUND)  # lengths of the last chains that found their own

    def must_wait(self) -> None:
        """Raise SettingError unless the worker waits for something to do."""
        match self.phase:
            case "replying":
                raise SettingError("A reply is streaming.", "<chat.stop> stops it.")
            case "racing":
                raise SettingError("A race is running.", "<chat.stop> stops it.")
            case "loading":
                raise SettingError("The model is still being opened.", "Try again in a moment.")
            case "down":
                raise SettingError("There is no worker.", AGAIN)

    def must_not_stream(self) -> None:
        """Raise SettingError while the worker is at a reply or a race."""
        if self.phase in ("replying", "racing"):
            self.must_wait()

    @property
    def chain(self) -> int:
        """The chain in use: as set, or what the last rounds found on average."""
        if self.controls.auto and self._found:
            return round(sum(self._found) / len(self._found))
        return self.controls.chain

    @property
    def messages(self) -> tuple[Message, ...]:
        """The turns so far, without the system message; the last one may wait for its reply."""
        if self.reply is None:
            return answered(self.exchanges, self.info)
        waiting = Message("user", self.reply.exchange.said)
        return (*answered(self.exchanges[:-1], self.info), waiting)

    @property
    def last(self) -> Exchange | None:
        """The last exchange."""
        return self.exchanges[-1] if self.exchanges else None

    def say(self, text: str) -> Say:
        """The user's next message: the request for the reply to it."""
        assert self.phase == "idle"
        self.exchanges.append(Exchange(text))
        return self._ask(LiveReply(self.exchanges[-1]))

    def again(self) -> Say:
        """The request for another reply to the last message."""
        assert self.phase == "idle"
        return self._ask(LiveReply(self.exchanges[-1]))

    def go_on(self) -> Say:
        """The request for the rest of the last reply."""
        exchange = self.exchanges[-1]
        reply = exchange.reply
        assert self.phase == "idle"
        assert reply is not None
        live = LiveReply(exchange, goes_on=True, begun=len(reply.rounds))
        for round_ in reply.rounds:
            live.rounds.append(round_)
            live.tally.add(round_)
        return self._ask(live)

    def _ask(self, live: LiveReply) -> Say:
        self.phase, self.reply = "replying", live
        begun = live.exchange.reply
        more = (message_of(begun, self.info),) if live.goes_on and begun is not None else ()
        self._list_rounds()
        return Say((*self.head, *self.messages, *more), self.controls, self.max_new_tokens)

    @property
    def head(self) -> tuple[Message, ...]:
        """The system message, if there is one."""
        return (Message("system", self.system),) if self.system else ()

    def recall(self, past: Past) -> str:
        """The exchanges of a conversation that goes on. Its last message if that went unanswered, or nothing."""
        self.exchanges = exchanges(past)
        unanswered = self.exchanges.pop() if self.exchanges and self.exchanges[-1].reply is None else None
        self._list_rounds()
        return unanswered.said if unanswered else ""

    def prefilled(self, event: Prefill) -> None:
        """The prompt is in the cache as far as this."""
        self.used = event.done

    def add(self, round_: Round) -> Round:
        """A round of the reply; it comes back as the reply numbers it."""
        assert self.reply is not None
        first = not self.reply.rounds
        round_ = self.reply.add(round_)
        if first:
            self._list_rounds()
        if round_.why:
            self._found.append(round_.chain)
        self.used = round_.position + round_.emitted
        if round_.burst is not None and not round_.position:
            self.used = NOT_KNOWN
        return round_

    def measured(self, finished: Finished) -> None:
        """A server told at its end how long the reply and its prompt were."""
        told = finished.usage.told
        if told is not None and told.prompt_tokens is not None and told.generated_tokens is not None:
            self.used = told.prompt_tokens + told.generated_tokens

    def end_reply(self, finished: Finished | None) -> str:
        """The reply ended, by itself or (None) with the worker. The message that went unanswered, or nothing.

        A message without a single token of reply is taken back, so that turns alternate.
        """
        live, self.reply = self.reply, None
        if live is None:
            return ""
        exchange = live.exchange
        if live.rounds:
            pair = PairName() if self.info is None else PairName.of(self.info)
            rounds = tuple(live.rounds)
            text, ids = reply_text(rounds, finished), reply_ids(rounds, finished)
            reply = Reply(text, ids, rounds, finished, self.controls, pair)
            if live.goes_on:
                exchange.replies[exchange.chosen] = reply
            else:
                exchange.add(reply)
        if exchange.reply is None:
            self.exchanges.pop()
        self._list_rounds()
        return "" if exchange.reply is not None else exchange.said

    def back(self, keep: int) -> None:
        """Keep the first exchanges."""
        self._undone.append((keep, list(self.exchanges)))
        del self.exchanges[keep:]
        self._list_rounds()

    def undo(self) -> None:
        """Have again what `back` took away last, in the place of what came after it.

        Raises:
            SettingError: Nothing was taken away, or the conversation went on since.
        """
        keep, before = self._undone[-1] if self._undone else (0, [])
        if not before:
            raise SettingError("There is nothing to undo.", "It takes back a /delete, or a message written anew.")
        if len(self.exchanges) > keep + 1:
            raise SettingError("The conversation went on since, which undoing would take away.")
        self._undone.pop()
        self.exchanges[:] = before
        self._list_rounds()

    def choose(self, place: int) -> None:
        """Another reply to the last message counts."""
        self.exchanges[-1].chosen = place
        self._list_rounds()

    def new_seed(self) -> None:
        """Draw a seed, short enough to be typed again."""
        sampling = replace(self.controls.sampling, seed=secrets.randbits(32))
        self.controls = replace(self.controls, sampling=sampling)

    def renew(self) -> None:
        """Begin a new conversation; a seed that nobody asked for is drawn anew."""
        self.exchanges.clear()
        self._undone.clear()
        self.rounds.clear()
        self.queue.clear()
        self.used = 0
        if not self.keep_seed:
            self.new_seed()

    def _list_rounds(self) -> None:
        """Who looks at the rounds keeps the list, so it is filled anew."""
        live = self.reply
        done = [e.reply.rounds for e in self.exchanges if e.reply and (live is None or e is not live.exchange)]
        self.rounds[:] = [rounds for rounds in (*done, *((live.rounds,) if live else ())) if rounds]
