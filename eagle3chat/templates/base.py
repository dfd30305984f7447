"""What a chat template is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from eagle3chat.engine.requests import Message, Piece


class Template(Protocol):
    """Renders conversations for one family of models."""

    @property
    def name(self) -> str:
        """A built-in's name, "model", or the name of a file."""

    @property
    def stop_tokens(self) -> tuple[str, ...]:
        """Control tokens that end a turn in this family, by name. A tokenizer need not have all of them."""

    def render(self, messages: Sequence[Message], *, start_reply: bool = True) -> list[Piece]:
        """The pieces of a prompt.

        A reply among the messages that has token ids becomes a piece of ids, after the text that the target saw
        when it wrote them, and before the family's end of turn. BOS is the codec's to add.

        Args:
            start_reply: End with the text that starts a reply.

        Raises:
            TemplateError: The template has no place for a message, or refuses the conversation.
        """


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """Without empty pieces, neighbouring template pieces made one (a control token may span their border)."""
    result: list[Piece] = []
    for piece in pieces:
        if piece.kind == "template" and result and result[-1].kind == "template":
            result[-1] = Piece("template", result[-1].text + piece.text)
        elif piece.text or piece.ids:
            result.append(piece)
    return result
