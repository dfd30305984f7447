"""A conversation as one page of HTML that needs nothing else: no script, no font, no picture from elsewhere.

Everything that a person or a model said is escaped and shown as the characters that it is, Markdown as its source.
The page's own policy forbids scripts, forms and everything from outside, so even a mistake here could load nothing.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby

from eagle3chat.engine.events import Round, Token
from eagle3chat.transcript_codec import Conversation, Reply
from eagle3chat.transcript_line import Exchange, exchanges
from eagle3chat.transcript_list import title_of
from eagle3chat.transcript_plots import Places, by_place, by_round
from eagle3chat.ui.clean import clean, clean_line, clean_token
from eagle3chat.ui.figures import plural, under_reply
from eagle3chat.ui.marks import Piece
from eagle3chat.ui.thinking import reply_parts

STYLE = """
:root { color-scheme: light dark; --back: #F4F4F2; --text: #1E1E1E; --quiet: #5F5F5F; --line: #C4C4C4;
  --accepted: #005A8C; --correction: #A34700; --bonus: #944060; --off: #5A5A5A; --panel: #EBEBE8; }
@media (prefers-color-scheme: dark) { :root { --back: #121212; --text: #DEDEDE; --quiet: #9A9A9A; --line: #3A3A3A;
  --accepted: #56B4E9; --correction: #E69F00; --bonus: #CC79A7; --off: #999999; --panel: #1A1A1A; } }
body { background: var(--back); color: var(--text); font: 16px/1.55 system-ui, sans-serif; max-width: 52rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; line-height: 1.25; overflow-wrap: anywhere; } h2 { font-size: 1rem; margin: 2rem 0 .3rem; }
.quiet, figcaption, summary { color: var(--quiet); font-size: .87rem; }
.said, .reply, .rounds { white-space: pre-wrap; overflow-wrap: anywhere; }
.said { border-left: 3px solid var(--line); padding-left: .8rem; }
.thought { border-left: 3px solid var(--line); padding-left: .8rem; margin: .3rem 0; white-space: pre-wrap; }
code { font: .88em/1.5 ui-monospace, monospace; background: var(--panel); }
.accepted { color: var(--accepted); text-decoration: underline; text-underline-offset: 3px; }
.correction { color: var(--correction); font-weight: bold; } .bonus { color: var(--bonus); font-style: italic; }
.rejected { color: var(--off); text-decoration: line-through; } .unreached { color: var(--off); opacity: .85; }
.rounds { border-collapse: collapse; font: .82rem/1.5 ui-monospace, monospace; margin: .5rem 0; width: 100%; }
.rounds td { vertical-align: top; padding: 0 .8rem 0 0; } .rounds .n { text-align: right; color: var(--quiet);
  white-space: nowrap; width: 1%; }
figure { margin: .8rem 0; overflow-x: auto; } .plot { max-width: none; display: block; }
.plot text { fill: var(--quiet); font: 10px system-ui, sans-serif; } .plot .grid { stroke: var(--line); }
.plot .bar { fill: var(--accepted); } .plot .open { fill: var(--line); opacity: .6; }
"""
_COLUMNS = re.compile(
    r"^ {0,3}(`{3,}|~{3,})[^\n]*\n.*?(?:^ {0,3}\1[`~]*[ \t]*$|\Z)|^\|[^\n]*(?:\n\|[^\n]*)*", re.MULTILINE | re.DOTALL
)
"""Fenced code, and tables."""
_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'"


def page(conversation: Conversation) -> str:
    """The page. ASCII and what else the conversation holds, for UTF-8."""
    found = exchanges(conversation)
    title = _line(conversation.title or (title_of(found[0].said) if found else "") or conversation.header.id)
    return "".join(
        (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            '<meta name="referrer" content="no-referrer">\n',
            f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n",
            *_head(conversation, found),
            *(part for number, exchange in enumerate(found, 1) for part in _exchange(number, exchange)),
            "</body>\n</html>\n",
        )
    )


def _head(conversation: Conversation, found: Sequence[Exchange]) -> Iterator[str]:
    pair = conversation.pair
    facts = [pair.model, pair.draft and f"draft {pair.draft}", pair.backend, pair.device, pair.dtype]
    facts += [conversation.header.created[:16].replace("T", " ")]
    yield f'<p class="quiet">{_line(" · ".join(fact for fact in facts if fact))}</p>\n'
    if conversation.system:
        yield f'<h2>system</h2>\n<div class="said">{_block(conversation.system)}</div>\n'
    if conversation.skipped:
        yield f'<p class="quiet">{plural(conversation.skipped, "damaged line")} of the transcript left out</p>\n'
    rounds = [r for exchange in found if exchange.reply for r in exchange.reply.rounds]
    if plot := by_place(Places.of(rounds)):
        yield _figure(plot, "All replies: accepted / judged drafts at each place of the chain")
        yield (
            '<p class="quiet">In the replies: <span class="accepted">accepted</span> (drafted, and the target said the '
            'same), <span class="correction">correction</span> (the target\'s own token after a rejection), '
            '<span class="bonus">bonus</span> (its own token after a whole chain). In the rounds: '
            '<span class="rejected">✗rejected</span>, <span class="unreached">(unreached)</span>.</p>\n'
        )


def _exchange(number: int, exchange: Exchange) -> Iterator[str]:
    yield f'<h2>you · {number}</h2>\n<div class="said">{_block(exchange.said)}</div>\n'
    for place, reply in enumerate(exchange.replies):
        if place == exchange.chosen:
            yield "<h2>model</h2>\n"
            yield from _reply(reply)
        else:
            yield f"<details><summary>reply {place + 1} of {len(exchange.replies)}, not chosen</summary>\n"
            yield from _reply(reply)
            yield "</details>\n"


def _reply(reply: Reply) -> Iterator[str]:
    for thought, parts in groupby(reply_parts(reply), key=lambda part: part.thought):
        pieces = [part.piece for part in parts]
        if thought:
            words = plural(len("".join(piece.text for piece in pieces).split()), "word")
            yield f'<details><summary>thought, {words}</summary><div class="thought">'
            yield from (_piece(piece.kind, piece.text) for piece in pieces)
            yield "</div></details>\n"
        else:
            yield '<div class="reply">'
            yield from _marked(pieces)
            yield "</div>\n"
    ending = " · ".join(under_reply(reply.finished)) if reply.finished else "broken off"
    sampling, chain = reply.controls.sampling, "auto" if reply.controls.auto else str(reply.controls.chain)
    if any(r.burst for r in reply.rounds):
        chain = "of the server"
    said = f"{ending} · chain {chain} · temperature {sampling.temperature:.4g} · seed {sampling.seed}"
    yield f'<p class="quiet">{_line(said)}</p>\n'
    if reply.rounds:
        yield from _rounds(reply.rounds)


def _marked(pieces: Sequence[Piece]) -> Iterator[str]:
    """Text with the kinds of its tokens, what stands in columns (code, tables) in letters of one width."""
    text = "".join(piece.text for piece in pieces)
    edges = [edge for match in _COLUMNS.finditer(text) for edge in match.span()]
    at, inside = 0, False
    for piece in pieces:
        left = piece.text
        while left:
            if edges and edges[0] == at:
                edges.pop(0)
                inside = not inside
                yield "<code>" if inside else "</code>"
                continue
            size = min(len(left), edges[0] - at) if edges else len(left)
            yield _piece(piece.kind, left[:size])
            left, at = left[size:], at + size
    if inside:
        yield "</code>"


def _piece(kind: str, text: str) -> str:
    return _block(text) if kind == "plain" else f'<span class="{kind}">{_block(text)}</span>'


def _rounds(rounds: Sequence[Round]) -> Iterator[str]:
    if all(r.burst for r in rounds):
        return  # pieces of a server's text, in which no draft is seen
    if plot := by_round(rounds):
        yield _figure(plot, "Accepted tokens of each round (pale: drafted)")
    yield f"<details><summary>{plural(len(rounds), 'round')}</summary>\n"
    yield _figure(by_place(Places.of(rounds)), "Accepted / judged drafts at each place")
    yield '<table class="rounds">\n'
    for r in rounds:
        yield f'<tr><td class="n">{r.index + 1}</td><td>{"".join(_tokens(r))}</td>'
        yield f'<td class="n">{r.accepted}/{len(r.drafted)}</td><td class="n">{r.seconds * 1000:.1f} ms</td></tr>\n'
    yield "</table></details>\n"


def _tokens(r: Round) -> Iterator[str]:
    for token in r.drafted[: r.accepted]:
        yield _token(token, "accepted")
    if r.rejected is not None:
        yield _token(r.rejected, "rejected", "✗")
    for token in r.unreached:
        yield _token(token, "unreached", "(", ")")
    if r.own is not None:
        before = {"correction": "→ ", "bonus": "+ "}.get(r.own_kind or "", "")
        yield _token(r.own, r.own_kind or "plain", before)


def _token(token: Token, kind: str, before: str = "", after: str = "") -> str:
    chances = (("draft", token.draft_p), ("target", token.target_p))
    told = ", ".join(f"{name} {p:.2f}" for name, p in chances if p is not None)
    title = f' title="{kind}: {told}"' if told else f' title="{kind}"'
    return f'<span class="{kind}"{title}>{before}{escape(clean_token(token.text))}{after}</span> '


def _figure(plot: str, caption: str) -> str:
    return f"<figure>{plot}<figcaption>{caption}</figcaption></figure>\n" if plot else ""


def _block(text: str) -> str:
    return escape(clean(text))


def _line(text: str) -> str:
    return escape(clean_line(text))
