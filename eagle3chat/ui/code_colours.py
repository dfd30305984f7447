"""The colours of code, found a slice at a time so that a long fence never holds the screen. Knows no widget.

The language is the one that the model named: to guess one takes as long as it likes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from textual.content import Span

if TYPE_CHECKING:
    from pygments.token import _TokenType
    from textual.highlight import HighlightTheme

LONGEST, LONGEST_LINE = 60_000, 2_000  # characters of code, and of a line of it, up to which it has colours


class CodeColours:
    """Colours of a text, from its beginning on.

    Args:
        code: Without carriage returns.
        language: As the model named it; empty or not known: the text has no colours.
        ansi: The terminal's own 16 colours are used.
        dark: The background is.
    """

    def __init__(self, code: str, language: str, ansi: bool, dark: bool) -> None:
        longest = max(map(len, code.split("\n")), default=0)
        plain = not language or len(code) > LONGEST or longest > LONGEST_LINE
        self._tokens = iter(()) if plain else _styled(code, language, ansi, dark)
        self._line = 0
        self._column = 0
        self.over = plain

    def step(self, characters: int) -> dict[int, list[Span]]:
        """The spans of about so many more characters, by line; a line's may come in several steps."""
        found: dict[int, list[Span]] = {}
        while characters > 0:
            token = next(self._tokens, None)
            if token is None:
                self.over = True
                break
            text, style = token
            characters -= len(text)
            for place, part in enumerate(text.split("\n")):
                if place:
                    self._line, self._column = self._line + 1, 0
                if part and style:
                    span = Span(self._column, self._column + len(part), style)
                    found.setdefault(self._line, []).append(span)
                self._column += len(part)
        return found


def _styled(code: str, language: str, ansi: bool, dark: bool) -> Iterator[tuple[str, str]]:
    """The tokens of code, each with its style."""
    from pygments.lexers import get_lexer_by_name  # with what they import, 50 ms of the start for the first fence
    from pygments.util import ClassNotFound

    try:
        lexer = get_lexer_by_name(language, stripnl=False)
    except ClassNotFound:
        return iter(())
    return _with_styles(lexer.get_tokens(code), _theme(ansi, dark).STYLES)


def _with_styles(tokens: Iterator[tuple[_TokenType, str]], theme: Mapping[Any, str]) -> Iterator[tuple[str, str]]:
    styles: dict[_TokenType, str] = {}
    for kind, text in tokens:
        if kind not in styles:
            up: _TokenType | None = kind
            while up is not None and not theme.get(up):
                up = up.parent
            styles[kind] = theme[up] if up is not None else ""
        yield text, styles[kind]


def _theme(ansi: bool, dark: bool) -> type[HighlightTheme]:
    from textual.highlight import ANSIDarkHighlightTheme, ANSILightHighlightTheme, HighlightTheme

    return (ANSIDarkHighlightTheme if dark else ANSILightHighlightTheme) if ansi else HighlightTheme
