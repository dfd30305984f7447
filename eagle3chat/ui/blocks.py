"""Where the blocks of a reply end, and which of them may be drawn as Markdown.

A reply streams as plain text. When a block is finished (a paragraph, a list, a fence), it settles: it is drawn
as Markdown from then on, once and for good. A block whose Markdown would swallow characters (mathematics with
backslashes, stars between digits, table-like art) stays plain. Knows no widget.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_core import StateCore
    from markdown_it.token import Token

_FENCE = re.compile(r" {0,3}(?:(`{3,})[^`]*|(~{3,}).*)$")
_ITEM = re.compile(r" {0,3}([-*+]|\d{1,9}[.)])(\s|$)")
_ITEM_BEGUN = re.compile(r"[-*+]|\d{1,9}[.)]?")
_HEADING = re.compile(r" {0,3}#{1,6}(\s|$)")
_ALIGNED = re.compile(r"\S {3,}\S")  # text set in columns by spaces

# Rules that would turn text that looks like a tag, an entity, an escape or a link into something else.
_OFF = ("autolink", "entity", "escape", "html_block", "html_inline", "image", "lheading", "link", "reference")


class Splitter:
    """Cuts text that arrives in pieces into blocks. Work is proportional to the new lines.

    A block ends where the next one is seen to begin, so the blank lines between them belong to the first.
    """

    def __init__(self) -> None:
        self._lines: list[str] = []  # complete lines of the open block, each with its newline
        self._line = ""  # the line that is still growing
        self._fence = ""  # the marker that closes the open fence
        self._filled = False  # the open block has more than blank lines
        self._list = False  # the open block is a list
        self._over = False  # the next line that is not blank begins a block, unless a list goes on

    @property
    def open(self) -> str:
        """The text that belongs to no finished block yet."""
        return "".join(self._lines) + self._line

    def feed(self, text: str) -> list[str]:
        """Blocks that `text` finished. Joined with `open`: all text."""
        finished: list[str] = []
        *complete, self._line = (self._line + text).split("\n")
        for line in complete:
            if self._ends_at(line):
                finished.append(self._cut())
            self._take(line + "\n")
        if self._over and self._ends_at(self._line, growing=True):
            finished.append(self._cut())
        return finished

    def _ends_at(self, line: str, growing: bool = False) -> bool:
        """Whether the open block ends before this line, of which more may come."""
        if not self._filled or self._fence or not line.strip():
            return False
        if self._list and (line.startswith((" ", "\t")) or _ITEM.match(line)):
            return False
        if self._list and growing and _ITEM_BEGUN.fullmatch(line):
            return False  # not to be told yet
        return self._over or bool(_FENCE.match(line) or _HEADING.match(line))

    def _take(self, line: str) -> None:
        bare = line.strip()
        self._lines.append(line)
        if self._fence:
            if bare.startswith(self._fence) and not bare.strip(self._fence[0]):
                self._fence, self._over = "", not self._list
        elif not bare:
            self._over = self._filled
        else:
            if not self._filled:
                self._filled, self._list = True, bool(_ITEM.match(line))
            fence = _FENCE.match(bare if self._list else line.rstrip("\n"))
            self._fence = (fence[1] or fence[2]) if fence else ""
            self._over = not self._list and bool(_HEADING.match(line))

    def _cut(self) -> str:
        block = "".join(self._lines)
        self._lines, self._filled, self._list, self._over = [], False, False, False
        return block


def _keep_lines(state: StateCore) -> None:
    """Draw a single newline as a newline: verse and addresses keep their lines."""
    for token in state.tokens:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"


@cache
def parser() -> MarkdownIt:
    """The parser of settled blocks: tables, lists, fences, emphasis, bare links; no tags, no escapes."""
    from markdown_it import MarkdownIt  # 20 ms that the first paint need not wait for

    markdown = MarkdownIt("gfm-like")
    known = {name for names in markdown.get_all_rules().values() for name in names}
    markdown.disable([rule for rule in _OFF if rule in known])
    markdown.core.ruler.push("keep_lines", _keep_lines)
    return markdown


def drawn(tokens: Iterable[Token]) -> str:
    """The characters that the tokens put on the screen, in order."""
    parts: list[str] = []
    for token in tokens:
        if token.type == "inline":
            parts.append(drawn(token.children or ()))
        elif token.type in ("text", "code_inline", "fence", "code_block"):
            parts.append(token.content)
        elif token.type in ("hardbreak", "softbreak"):
            parts.append("\n")
        elif token.type == "list_item_open" and token.info:
            parts.append(token.info + token.markup)
    return "".join(parts)


def safe_tokens(block: str) -> list[Token] | None:
    """The block's Markdown, if drawn as that it loses nothing but the marks of Markdown itself."""
    if not block.strip():
        return None
    tokens = parser().parse(block)
    if all(token.type in ("fence", "code_block") for token in tokens):
        return tokens
    if _ALIGNED.search("".join(t.content for t in tokens if t.type == "inline")) and not _has_table(tokens):
        return None
    return tokens if _only_marks_lost(block, drawn(tokens)) else None


def _has_table(tokens: Iterable[Token]) -> bool:
    return any(token.type == "table_open" for token in tokens)


def _only_marks_lost(source: str, shown: str) -> bool:
    """Walk the source along what is shown; whatever is not shown must be a mark."""
    letters = [c for c in shown if not c.isspace()]
    at = 0
    for line in source.splitlines():
        lead = True  # still in the marks that may begin a line
        fence = _FENCE.match(line.strip())
        for place, char in enumerate(line):
            if char.isspace():
                continue
            if at < len(letters) and letters[at] == char:
                at, lead = at + 1, False
            elif fence or _is_mark(line, place, lead):
                continue
            else:
                return False
    return at == len(letters)


def _is_mark(line: str, place: int, lead: bool) -> bool:
    """Whether the character, which is not shown, is a mark of Markdown and not a sign of the text."""
    char = line[place]
    if char in "|`":
        return True
    if char == ":" or (char == "-" and "|" in line):
        return set(line) <= set("|:- \t")  # the ruler of a table
    if char in "-+*>#" and lead:
        return True
    if char in "-_*" and set(line.strip()) <= set("-_* "):
        return True  # a thematic break
    if char == "#":
        return line.lstrip().startswith("#")  # the tail of a heading
    if char in "*~":
        before, after = line[:place].rstrip(char)[-1:], line[place:].lstrip(char)[:1]
        inside_word = before.isascii() and before.isalnum() and after.isascii() and after.isalnum()
        return before != "\\" and not inside_word
    return False
