"""Templates that are a prefix and a suffix for each role. The built-in families are values of this class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from eagle3chat.engine.errors import TemplateError
from eagle3chat.engine.requests import Message, Piece
from eagle3chat.templates.base import joined

Affixes = tuple[str, str]
"""What stands before and after a message."""


@dataclass(frozen=True, slots=True)
class TurnTemplate:
    """Prefix, message, suffix; one turn after the other.

    `stop_ids` and `bos_id` are what the family's reference runner uses by default, for a bundle that states none.
    """

    name: str
    user: Affixes
    assistant: Affixes
    system: Affixes | None = None  # None: the family has no place for a system text
    opening: str = ""  # before the first turn
    start_reply: str | None = None  # what starts a reply that the target is to write; None: the assistant's prefix
    trim: bool = False  # the family strips white space around messages
    stop_tokens: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    bos_id: int | None = None

    def render(self, messages: Sequence[Message], *, start_reply: bool = True) -> list[Piece]:
        """See `Template.render`."""
        return joined(self._pieces(messages, start_reply))

    def _pieces(self, messages: Sequence[Message], start_reply: bool) -> Iterator[Piece]:
        start = self.assistant[0] if self.start_reply is None else self.start_reply
        yield Piece("template", self.opening)
        for message in messages:
            prefix, suffix = self._affixes(message)
            if message.token_ids is not None:
                yield Piece("template", start)  # as the target saw it
                yield Piece("ids", ids=message.token_ids)
            else:
                yield Piece("template", prefix)
                yield Piece("content", message.content.strip() if self.trim else message.content)
            yield Piece("template", suffix)
        if start_reply:
            yield Piece("template", start)

    def _affixes(self, message: Message) -> Affixes:
        if message.role == "user":
            return self.user
        if message.role == "assistant":
            return self.assistant
        if self.system is None:
            raise TemplateError(
                f"The template {self.name} has no place for a system text.",
                "Leave the system text out, or put it into the first message.",
            )
        return self.system
