"""A conversation as it stands after all that was changed in it: exchanges, each with the replies that it got.

A transcript only grows. A message that was edited or deleted stays in the file, and a `Change` says what no longer
counts. Knows no files and no screen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from eagle3chat.engine.events import Info
from eagle3chat.engine.requests import Message
from eagle3chat.transcript_codec import Change, Conversation, Reply, Said


@dataclass(slots=True)
class Exchange:
    """A message of the user and the replies to it, oldest first, of which one counts."""

    said: str
    replies: list[Reply] = field(default_factory=list)
    chosen: int = -1  # place of the reply that counts; -1: there is none

    def add(self, reply: Reply) -> None:
        """A reply, which counts from now on unless there is nothing of it."""
        if reply.text or reply.token_ids:
            self.replies.append(reply)
            self.chosen = len(self.replies) - 1

    @property
    def reply(self) -> Reply | None:
        """The reply that counts."""
        return self.replies[self.chosen] if self.replies else None


def exchanges(conversation: Conversation) -> list[Exchange]:
    """The exchanges that count at the end of a conversation; the last one may have no reply."""
    found: list[Exchange] = []
    before: list[list[Exchange]] = []  # each "back"
    for turn in conversation.turns:
        match turn:
            case Said(role="user", text=text):
                if found and found[-1].reply is None:
                    found.pop()  # it went unanswered
                found.append(Exchange(text))
            case Reply() if found:
                found[-1].add(turn)
            case Change(kind="back", value=keep):
                before.append(list(found))
                del found[max(0, keep) :]
            case Change(kind="undo") if before:
                found = before.pop()
            case Change(kind="choose", value=place) if found and 0 <= place < len(found[-1].replies):
                found[-1].chosen = place
    return found


def message_of(reply: Reply, info: Info | None) -> Message:
    """A reply as a message of the next request.

    It carries its token ids when `info` names the model that wrote it and no stop string, which is not part of the
    text, ended it.
    """
    same = info is not None and (reply.pair.model, reply.pair.family) == (info.model, info.family)
    ids = reply.token_ids if same and not _ended_by_string(reply) else ()
    return Message("assistant", reply.text, ids or None)  # a server tells no ids


def answered(found: Sequence[Exchange], info: Info | None) -> tuple[Message, ...]:
    """The messages of the exchanges that have a reply: templates want turns to alternate."""
    messages: list[Message] = []
    for exchange in found:
        if exchange.reply is not None:
            messages += [Message("user", exchange.said), message_of(exchange.reply, info)]
    return tuple(messages)


def to_messages(conversation: Conversation, info: Info | None = None) -> tuple[Message, ...]:
    """The conversation as the messages of the next request, the system message first.

    Of several replies to one message the chosen one counts, or the last.
    """
    head = (Message("system", conversation.system),) if conversation.system else ()
    return head + answered(exchanges(conversation), info)


def _ended_by_string(reply: Reply) -> bool:
    if reply.finished is None or reply.finished.reason != "stop":
        return False
    last = reply.rounds[-1].tokens if reply.rounds else ()
    return not last or last[-1].text != reply.finished.stop
