"""A list as lines that hang under their bullets and numbers. Knows the parser's tokens and no widget.

Numbers are those that were written, though Markdown would count anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it.token import Token

BULLET = "• "
OPENS = ("bullet_list_open", "ordered_list_open")
CLOSES = ("bullet_list_close", "ordered_list_close")
KNOWN = (*OPENS, *CLOSES, "list_item_open", "list_item_close", "paragraph_open", "inline", "paragraph_close")


@dataclass(frozen=True, slots=True)
class Entry:
    """A paragraph of a list: what stands before its first line, and its text as a token. None: a blank line."""

    lead: str
    inline: Token | None


def entries(tokens: Sequence[Token]) -> list[Entry] | None:
    """The paragraphs of a list, outermost first; None where it holds something else than paragraphs and lists."""
    if not tokens or tokens[0].type not in OPENS or any(token.type not in KNOWN for token in tokens):
        return None
    walk = _Walk()
    for place, token in enumerate(tokens):
        walk.take(token, tokens, place)
    return walk.found


class _Walk:
    """Where one is in a list."""

    def __init__(self) -> None:
        self.found: list[Entry] = []
        self._widths: list[int] = []  # cells of the leads of the lists that are open
        self._loose: list[bool] = []  # whether their paragraphs stand apart
        self._symbol = ""  # that waits for its item's first line
        self._gap = False  # a blank line waits for the next line

    def take(self, token: Token, tokens: Sequence[Token], place: int) -> None:
        """The next token."""
        if token.type in OPENS:
            self._flush_symbol()
            self._widths.append(max(len(_symbol(each)) for each in _items(tokens, place)))
            self._loose.append(False)
        elif token.type in CLOSES:
            self._widths.pop()
            self._loose.pop()
            self._gap = bool(self._loose) and self._loose[-1]
        elif token.type == "list_item_open":
            self._flush_symbol()
            self._symbol = _symbol(token).rjust(self._widths[-1])
        elif token.type == "paragraph_open":
            self._loose[-1] = not token.hidden
        elif token.type == "inline":
            self._add(token)
        elif token.type == "paragraph_close":
            self._gap = self._loose[-1]
        elif token.type == "list_item_close":
            self._flush_symbol()

    def _flush_symbol(self) -> None:
        """An item that begins with a list, or has nothing, has a line for its bullet."""
        if self._symbol:
            self._add(None)

    def _add(self, inline: Token | None) -> None:
        if self._gap:
            self.found.append(Entry("", None))
            self._gap = False
        lead = self._symbol or " " * self._widths[-1]
        self.found.append(Entry(" " * sum(self._widths[:-1]) + lead, inline))
        self._symbol = ""


def _items(tokens: Sequence[Token], place: int) -> list[Token]:
    """The items of the list that opens at a place."""
    found: list[Token] = []
    for token in tokens[place + 1 :]:
        if token.type == "list_item_open" and token.level == tokens[place].level + 1:
            found.append(token)
        elif token.level == tokens[place].level and token.type in CLOSES:
            break
    return found


def _symbol(item: Token) -> str:
    return f"{item.info}{item.markup} " if item.info else BULLET
