"""What a person looks for, as conditions on the index: words and "phrases in quotes", all of which must occur.

Knows the two columns of the table of words, no file and no screen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

TERM = re.compile(r'"([^"]*)"?|(\S+)')
UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""Scripts that write no spaces: the index takes a whole clause for one word, so they are looked for in the text."""


@dataclass(frozen=True, slots=True)
class Query:
    """Words, and pieces of text that are no words."""

    match: str = ""  # in the language of FTS5
    pieces: tuple[str, ...] = ()  # anywhere in the text

    @classmethod
    def of(cls, text: str) -> Query:
        """The query that a person typed. Nothing in it is syntax but the quotes."""
        match: list[str] = []
        pieces: list[str] = []
        for phrase, word in TERM.findall(text.replace("\0", " ")):
            term = (phrase or word).strip()
            if not term:
                continue
            if UNSPACED.search(term) or not any(c.isalnum() for c in term):
                pieces.append(term)
            else:
                match.append(f'"{_unquoted(term)}"' + ("" if phrase else "*"))
        return cls(" AND ".join(match), tuple(pieces))

    @property
    def empty(self) -> bool:
        """Nothing is looked for."""
        return not self.match and not self.pieces

    def where(self, table: str) -> tuple[str, tuple[str, ...]]:
        """The condition on a table of words, in SQL, and its values."""
        conditions = [f"{table} MATCH ?"] if self.match else []
        conditions += [f"instr({table}.title || char(10) || {table}.body, ?) > 0"] * len(self.pieces)
        return " AND ".join(conditions) or "1", (*((self.match,) if self.match else ()), *self.pieces)


def _unquoted(term: str) -> str:
    return term.replace('"', " ")
