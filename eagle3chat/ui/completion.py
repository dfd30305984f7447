"""What the word before the cursor may become: a slash command, or a path after `@`. Knows no widget."""

from __future__ import annotations

import re
from dataclasses import dataclass

from eagle3chat.ui.attach import paths
from eagle3chat.ui.commands import COMMANDS

_COMMAND = re.compile(r"/\w*")
_PATH = re.compile(r'(?:^|\s)@(?:"([^"]*)|(\S*))$')


@dataclass(frozen=True, slots=True)
class Choice:
    """Ways to go on from a word that begins at `start`."""

    start: int
    words: tuple[str, ...]

    @property
    def common(self) -> str:
        """What they all begin with."""
        first, last = min(self.words), max(self.words)
        return next((first[:i] for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), first)


def choice(before: str) -> Choice | None:
    """The ways to go on from the text before the cursor, on its line; None: there are none."""
    if _COMMAND.fullmatch(before):
        typed = before[1:].lower()
        fits = [c for c in COMMANDS if c.name.startswith(typed)]
        words = tuple(f"/{c.name}{' ' if c.argument else ''}" for c in fits)
        return Choice(0, words) if words else None
    if (match := _PATH.search(before)) is not None:
        begun = match[2] if match[1] is None else match[1]
        words = tuple(_named(path) for path in paths(begun))
        return Choice(before.rindex("@", 0, match.end()), words) if words else None
    return None


def _named(path: str) -> str:
    """A path behind its sign, in quotes where it has spaces; the quotes of a directory stay open."""
    if " " not in path:
        return f"@{path}"
    return f'@"{path}' if path.endswith("/") else f'@"{path}"'
