"""The text of a reply as it streams, and what ends it.

Whatever is streamed, in whatever portions, equals `Codec.decode` of the same ids: there is one way to text, not two.
Only tokens that stay in the reply may be fed to a `ReplyText`: drafted tokens that were rejected leave no trace.

This module knows no template, no model and no rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eagle3chat.engine.codec import Characters, Codec
from eagle3chat.engine.errors import SettingError
from eagle3chat.engine.quick import quick

__all__ = ["Codec", "ReplyText", "Stops", "Taken"]


@dataclass(frozen=True, slots=True)
class Stops:
    """What ends a reply.

    Raises:
        SettingError: A stop string is empty.
    """

    ids: frozenset[int] = frozenset()
    strings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if "" in self.strings:
            raise SettingError("A stop string is empty.", "Name the text at which a reply should end.")


@quick
@dataclass(frozen=True, slots=True)
class Taken:
    """What became of the tokens that a `ReplyText` was offered."""

    kept: int  # of the offered ids, the one that ended the reply included
    text: str  # became readable
    ended: bool
    stop: str  # the stop token's name or the stop string; empty otherwise


class ReplyText:
    """The text of one reply, streamed. `Taken.text` of all calls, then `rest()`, is the reply.

    The first token that is a stop token or completes a stop string ends it. Among stop strings that one token
    completes, the one that ends first in the text counts; of two that end together, the longer.
    """

    def __init__(self, codec: Codec, stops: Stops) -> None:
        self._codec = codec
        self._stops = stops
        self._characters = Characters(codec)
        self._held = ""  # the beginning of a stop string, perhaps
        self._ended = False

    def take(self, ids: Sequence[int]) -> Taken:
        """Adds tokens that stay in the reply, in order, until one of them ends it."""
        assert not self._ended, "the reply has ended"
        text = ""
        for kept, id in enumerate(ids, 1):
            if id in self._stops.ids:
                return Taken(kept, text + self.rest(), True, self._codec.token_text(id))
            self._held += self._characters.step(id)
            if not self._stops.strings:
                text, self._held = text + self._held, ""
                continue
            if found := self._find_stop():
                stop, start = found
                text += self._held[:start]
                self._held, self._ended = "", True
                return Taken(kept, text, True, stop)
            text += self._release()
        return Taken(len(ids), text, False, "")

    def rest(self) -> str:
        """Ends the reply and gives what was held back. After a stop there is nothing left."""
        if self._ended:
            return ""
        text = self._held + self._characters.flush()
        self._held, self._ended = "", True
        return text

    def _find_stop(self) -> tuple[str, int] | None:
        """The stop string that ends first in the held text, and where it starts."""
        found = [(at + len(stop), at, stop) for stop in self._stops.strings if (at := self._held.find(stop)) >= 0]
        if not found:
            return None
        _, start, stop = min(found)
        return stop, start

    def _release(self) -> str:
        """All held text but its longest end that begins a stop string."""
        keep = 0
        for stop in self._stops.strings:
            for length in range(min(len(stop) - 1, len(self._held)), keep, -1):
                if self._held.endswith(stop[:length]):
                    keep = length
                    break
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return text
