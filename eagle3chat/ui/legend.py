"""What the marks and the figures mean, as far as the engine that is open can tell them. Text only, no widget.

Tokens have kinds where rounds are known and there is a draft. A server's text comes in pieces without a kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from textual.content import Content

from eagle3chat.engine.events import Info
from eagle3chat.ui.glyphs import Glyphs
from eagle3chat.ui.widgets.lane import STYLES, legend, short_legend

IN_REPLY = ("accepted", "correction", "bonus")
PIECES = "pieces of text, as the server sends them: which tokens were drafted is not visible"
PLAIN = "plain decoding: each round is one token of the target"
_SPEED = "tokens / seconds of the rounds, on the worker's clock; the prompt is not in it"
_CONTEXT = ("context", "positions in use of those that the caches hold")
_DRAFTED = (
    ("tau", "tokens of the reply / rounds: 1 is plain decoding, chain + 1 the most"),
    ("sparkline", "accepted tokens of each of the last rounds, from 0 to the longest chain in use; {} had no draft"),
    ("1 2 3 ...", "accepted / judged for the first, second, third drafted token; judged: reached by the target"),
    ("41 of 69 tested", "tested = accepted + rejected; drafts after a rejection are never judged"),
    ("tok/s", _SPEED),
    _CONTEXT,
)
_SERVED = (
    ("tau", "tokens of the reply / rounds, where the server tells them at the end of a reply"),
    ("sparkline", "tokens of each of the last pieces, from 0 to the largest one of the reply"),
    ("1 2 3 ...", "acceptance of the first, second, third drafted token, where the server tells it"),
    ("tok/s", "tokens / seconds of the pieces, on this machine's clock; the prompt is not in it"),
    _CONTEXT,
)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of token."""

    kind: str
    sign: Content
    meaning: str


def kinds(info: Info | None, glyphs: Glyphs) -> tuple[Kind, ...]:
    """The kinds that can be told apart; none where nothing is drafted, or drafts are out of sight."""
    if info is None or info.fixed_chain or not info.max_chain:
        return ()
    rows = (
        ("accepted", "accepted", "drafted, and the target said the same"),
        (
            "rejected",
            f"{glyphs.rejected}rejected",
            "drafted, and the target said something else; above temperature 0: drew something else",
        ),
        ("unreached", "(unreached)", "drafted after a rejection, never judged"),
        ("correction", f"{glyphs.correction} correction", "the target's own token after a rejection"),
        ("bonus", f"{glyphs.bonus} bonus", "the target's own token after a chain without a rejection"),
    )
    return tuple(Kind(kind, Content.styled(sign, STYLES[kind]), meaning) for kind, sign, meaning in rows)


def instead(info: Info | None) -> str:
    """What there is where no kinds can be told apart; empty: there are some, or nothing is open yet."""
    if info is None:
        return ""
    if info.fixed_chain:
        return PIECES
    return "" if info.max_chain else PLAIN


def in_a_row(info: Info | None, glyphs: Glyphs) -> tuple[Content, ...]:
    """All of that in one row, in several lengths, the longest first."""
    if kinds(info, glyphs):
        return legend(glyphs), short_legend(glyphs)
    text = instead(info)
    return Content.styled(text, "$quiet"), Content.styled(text.partition(",")[0].partition(":")[0], "$quiet")


def figures(info: Info | None, glyphs: Glyphs) -> Iterator[tuple[str, str]]:
    """The figures that are shown, and how each is made."""
    served = info is not None and bool(info.fixed_chain)
    plain = info is not None and not info.max_chain and not served
    for name, meaning in _SERVED if served else _DRAFTED:
        if plain and name in ("sparkline", "1 2 3 ...", "41 of 69 tested"):
            continue
        if info is not None and name == "context" and "capacity" in info.unknown:
            continue
        yield name, meaning.format(glyphs.undrafted)
