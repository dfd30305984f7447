"""Which characters of a reply came from which kind of token.

Rounds carry tokens and, apart from them, the text that became readable. The text may lag behind the tokens
(half a character, the start of a possible stop string), so tokens wait here until their characters arrive.
The text is never altered: joining what was added gives the reply. Knows no widget and no colour.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from eagle3chat.engine.events import Round

Kind = Literal["accepted", "correction", "bonus", "plain"]
"""How a token of the reply came to be."""

_PART = "\ufffd"
CHANNEL, CHANNEL_END = "<|channel>", "<channel|>"  # Gemma 4's control tokens: no text, and around its thinking


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of text of one kind."""

    kind: Kind
    text: str
    thought: bool = False  # in a channel of thinking


def kinds_of(round_: Round) -> Iterator[tuple[Kind, str]]:
    """Kind and lone text of each token that the round emitted."""
    for token in round_.drafted[: round_.accepted]:
        yield "accepted", token.text
    if round_.own is not None and round_.own_kind is not None:
        yield round_.own_kind, round_.own.text


class Marker:
    """Gives each character of a reply, as it arrives, to the token that completes it."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Kind, str]] = deque()
        self._thinks = False  # a channel is open
        self._last: Kind = "plain"  # of the token taken last: owns characters that no token spells

    def take(self, round_: Round) -> list[Piece]:
        """The round's text in pieces; their texts joined are `round_.text`."""
        self._waiting.extend(kinds_of(round_))
        return self.rest(round_.text)

    def rest(self, text: str) -> list[Piece]:
        """Text without new tokens, such as what a cancel flushed."""
        pieces: list[Piece] = []
        at = 0
        while at < len(text):
            kind, size = self._next(text, at)
            if pieces and (pieces[-1].kind, pieces[-1].thought) == (kind, self._thinks):
                pieces[-1] = Piece(kind, pieces[-1].text + text[at : at + size], self._thinks)
            elif size:
                pieces.append(Piece(kind, text[at : at + size], self._thinks))
            at += size
        return pieces

    def _next(self, text: str, at: int) -> tuple[Kind, int]:
        """Kind and length of the stretch at `at`. Tokens that spell nothing there are dropped on the way."""
        while self._waiting:
            kind, spelled = self._waiting[0]
            whole = spelled.split(_PART, 1)[0]
            if whole == spelled and spelled and text.startswith(spelled, at):
                self._take()
                return kind, len(spelled)
            rest = text[at:]
            if spelled.startswith(rest) and rest != spelled:  # the end of this token is still held back
                self._waiting[0] = (kind, spelled[len(rest) :])
                return kind, len(rest)
            if whole != spelled and whole and rest.startswith(whole):
                self._waiting[0] = (kind, spelled[len(whole) :])
                return kind, len(whole)
            found = -1 if whole != spelled or not spelled.strip() else rest.find(spelled)
            if found > 0:  # characters completed by the tokens before this one
                return self._last, found
            self._take()
        return self._last, len(text) - at

    def _take(self) -> None:
        self._last, spelled = self._waiting.popleft()
        if spelled in (CHANNEL, CHANNEL_END):
            self._thinks = spelled == CHANNEL
