"""The conversation as the screen holds it: messages, controls, what the worker is at. No widget, no thread."""

from __future__ import annotations

import secrets
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Literal

from eagle3chat.engine.events import Finished, Info, Prefill, Round
from eagle3chat.engine.requests import Controls, Message, Say
from eagle3chat.transcript_codec import Conversation as Past
from eagle3chat.transcript_codec import Reply as PastReply
from eagle3chat.ui.tally import Tally

Phase = Literal["loading", "idle", "replying", "down"]
"""What the worker is at: opening the pair, waiting, decoding, gone."""


@dataclass(slots=True)
class LiveReply:
    """A reply on its way."""

    said: str  # the message that it answers
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    last_token: str = ""
    tally: Tally = field(default_factory=Tally)

    def add(self, round_: Round) -> None:
        """Take a round."""
        self.texts.append(round_.text)
        self.token_ids.extend(token.id for token in round_.tokens)
        if round_.tokens:
            self.last_token = round_.tokens[-1].text
        self.tally.add(round_)

    def message(self, finished: Finished | None) -> Message | None:
        """The reply as a turn of the conversation; None: there is nothing of it.

        The stop token that ended it is not part of it. A reply that a stop string ended is read again from
        its text, because its ids hold the string.
        """
        text = "".join(self.texts) + (finished.text if finished else "")
        ids: tuple[int, ...] | None = tuple(self.token_ids)
        if finished is not None and finished.reason == "stop":
            ids = tuple(self.token_ids[:-1]) if self.last_token == finished.stop else None
        return Message("assistant", text, ids) if self.token_ids else None


class Chat:
    """State of one conversation, and the rules of what may happen next.

    Args:
        controls: Chain and sampling to begin with.
        max_new_tokens: Limit of each reply; None: to the end of the context.
        system: The system message; empty: none.
        messages: Turns of a conversation that goes on, without the system message.
        keep_seed: The seed was asked for, not drawn.
    """

    def __init__(
        self,
        controls: Controls,
        max_new_tokens: int | None = None,
        system: str = "",
        messages: tuple[Message, ...] = (),
        keep_seed: bool = False,
    ) -> None:
        self.controls = controls
        self.keep_seed = keep_seed
        self.max_new_tokens = max_new_tokens
        self.system = system
        self.messages = list(messages)
        self.rounds: list[list[Round]] = []  # of each reply that has any, for the inspector
        self.phase: Phase = "loading"
        self.info: Info | None = None
        self.queue: deque[str] = deque()  # messages that wait for the worker
        self.reply: LiveReply | None = None
        self.used = 0  # positions of the context
        self._last_chain: int | None = None  # of the last round

    @property
    def chain(self) -> int:
        """The chain in use: as set, or as the last round found it."""
        found = self._last_chain if self.controls.auto else None
        return self.controls.chain if found is None else found

    def say(self, text: str) -> Say:
        """The user's next message: the request for the reply to it."""
        assert self.phase == "idle"
        self.messages.append(Message("user", text))
        self.phase, self.reply = "replying", LiveReply(text)
        head = (Message("system", self.system),) if self.system else ()
        return Say(head + tuple(self.messages), self.controls, self.max_new_tokens)

    def recall(self, past: Past) -> None:
        """The rounds of a conversation that goes on."""
        self.rounds += [list(turn.rounds) for turn in past.turns if isinstance(turn, PastReply) and turn.rounds]

    def prefilled(self, event: Prefill) -> None:
        """The prompt is in the cache as far as this."""
        self.used = event.done

    def add(self, round_: Round) -> None:
        """A round of the reply."""
        assert self.reply is not None
        if not self.reply.token_ids:
            self.rounds.append([])
        self.reply.add(round_)
        self.rounds[-1].append(round_)
        self._last_chain = round_.chain
        self.used = round_.position + round_.emitted

    def end_reply(self, finished: Finished | None) -> str:
        """The reply ended, by itself or (None) with the worker. The message that went unanswered, or nothing.

        Without a single token the message is taken back, so that turns alternate.
        """
        reply, self.reply = self.reply, None
        if reply is None:
            return ""
        message = reply.message(finished)
        if message is None:
            self.messages.pop()
            return reply.said
        self.messages.append(message)
        return ""

    def renew(self) -> None:
        """Begin a new conversation; a seed that nobody asked for is drawn anew."""
        self.messages.clear()
        self.rounds.clear()
        self.queue.clear()
        self.used = 0
        if not self.keep_seed:
            sampling = replace(self.controls.sampling, seed=secrets.randbits(32))
            self.controls = replace(self.controls, sampling=sampling)
