"""Which part of a reply is thinking, which is shown folded.

Gemma 4 opens and closes a channel by control tokens, which are no text: the pieces carry what their tokens said.
Others write `<think>` and `</think>`, which count at the beginning of a reply alone: later on they are text that is
about such tags. Knows no widget.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from eagle3chat.transcript_codec import Reply
from eagle3chat.ui.marks import Marker, Piece

OPEN, CLOSE = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a reply."""

    thought: bool
    piece: Piece


class WordCount:
    """Counts words of text that comes in pieces."""

    def __init__(self) -> None:
        self.words = 0
        self._inside = False

    def add(self, text: str) -> None:
        """More text."""
        for char in text:
            self.words += not self._inside and not char.isspace()
            self._inside = not char.isspace()


class Divider:
    """Divides the pieces of one reply as they arrive. Joined, the parts hold all text but the tags."""

    def __init__(self) -> None:
        self._tag = OPEN  # that may come next; empty: none
        self._inside = False  # between tags
        self._held: list[Piece] = []  # the beginning of a tag, perhaps

    def feed(self, pieces: Iterable[Piece]) -> list[Part]:
        """Divide more text."""
        parts: list[Part] = []
        for piece in pieces:
            parts += self._piece(piece)
        return parts

    def rest(self) -> list[Part]:
        """The end: what was held back was text."""
        held, self._held = self._held, []
        return [Part(self._inside or piece.thought, piece) for piece in held]

    def _piece(self, piece: Piece) -> list[Part]:
        if not self._tag:
            return [Part(self._inside or piece.thought, piece)]
        held = [*self._held, piece]
        self._held = []
        text = "".join(p.text for p in held)
        at = text.find(self._tag)
        if at >= 0 and (self._inside or not text[:at].strip()):
            before, after = _cut(held, at), _cut(held, at + len(self._tag), end=True)
            parts = [Part(self._inside, p) for p in before]
            self._inside, self._tag = not self._inside, "" if self._inside else CLOSE
            return parts + [part for p in after for part in self._piece(p)]
        keep = _beginning(text, self._tag)
        if not self._inside and text[: len(text) - keep].strip():
            self._tag, keep = "", 0  # it begins with something else
        self._held = _cut(held, len(text) - keep, end=True)
        return [Part(self._inside or p.thought, p) for p in _cut(held, len(text) - keep)]


def _cut(pieces: list[Piece], at: int, *, end: bool = False) -> list[Piece]:
    """The pieces before an offset, or behind it."""
    found: list[Piece] = []
    start = 0
    for piece in pieces:
        cut = min(max(0, at - start), len(piece.text))
        if text := piece.text[cut:] if end else piece.text[:cut]:
            found.append(replace(piece, text=text))
        start += len(piece.text)
    return found


def _beginning(text: str, tag: str) -> int:
    """How many characters at the end of the text may begin the tag."""
    return next((n for n in range(min(len(tag) - 1, len(text)), 0, -1) if tag.startswith(text[-n:])), 0)


def reply_parts(reply: Reply) -> list[Part]:
    """The parts of a reply that is over, whose text they hold but for the tags."""
    marker, divider = Marker(), Divider()
    pieces = [piece for round_ in reply.rounds for piece in marker.take(round_)]
    so_far = "".join(piece.text for piece in pieces)
    if not reply.text.startswith(so_far):
        pieces, so_far = [], ""  # its rounds are not its text: some were lost
    pieces += marker.rest(reply.text[len(so_far) :])
    return divider.feed(pieces) + divider.rest()


def answer(reply: Reply) -> str:
    """The text of a reply without its thinking."""
    return "".join(part.piece.text for part in reply_parts(reply) if not part.thought).lstrip("\n")
