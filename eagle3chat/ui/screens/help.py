"""Keys, commands, and what the marks and figures mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Grid, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from eagle3chat.ui.bindings import respelled
from eagle3chat.ui.commands import COMMANDS
from eagle3chat.ui.glyphs import Glyphs
from eagle3chat.ui.widgets.lane import STYLES

KEYS = (
    ("Enter", "send"),
    ("shift+enter, ctrl+j, \\ Enter", "new line"),
    ("Esc", "stop the reply; what came stays"),
    ("ctrl+c", "copy the selection, else stop, else clear the prompt, else leave (twice)"),
    ("ctrl+r", "another reply to the last message, with a new seed; the old one is kept"),
    ("ctrl+l", "the next of the replies to the last message"),
    ("F6", "copy the last reply as Markdown source"),
    ("F12, alt+up", "the beginning of the last reply"),
    ("ctrl+o", "write the draft in $EDITOR"),
    ("ctrl+n", "a new conversation"),
    ("Tab", "complete a /command, or a path after @: the file's text goes with the message"),
    ("F7", "chain that finds its own length: the most tokens a second on this machine"),
    ("F8 / F9", "chain shorter / longer, from the next round on"),
    ("ctrl+g / ctrl+t", "temperature down / up by 0.1, from the next round on"),
    ("F2", "saved conversations: search, open, rename, fork, delete"),
    ("F3", "marks in the reply: full, subtle, off"),
    ("F4", "inspect the rounds of a reply: each drafted token, its probabilities; t there: the whole text"),
    ("F5", "start the worker again; the conversation stays"),
    ("PgUp, PgDn, ctrl+home, ctrl+end", "scroll the conversation"),
    ("up, down", "earlier messages, on the first and last line of the prompt"),
    ("ctrl+p", "all commands"),
    ("ctrl+q", "leave"),
)
FIGURES = (
    ("tau", "tokens of the reply / rounds: 1 is plain decoding, chain + 1 the most"),
    ("sparkline", "accepted tokens of each of the last rounds, on a scale from 0 to what was drafted"),
    ("1 2 3 ...", "accepted / judged for the first, second, third drafted token; judged: reached by the target"),
    ("41 of 69 tested", "tested = accepted + rejected; drafts after a rejection are never judged"),
    ("tok/s", "tokens / seconds of the rounds, on the worker's clock; the prompt is not in it"),
    ("context", "positions in use of those that the caches hold"),
)

STACKED = 60  # cells of the terminal, below which a meaning stands under its name


class Help(ModalScreen[None]):
    """Everything on one page."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f1,q,enter", "dismiss", "Close", id="help.close"),
        Binding("down,j", "scroll(1)", "Down", id="help.down", show=False),
        Binding("up,k", "scroll(-1)", "Up", id="help.up", show=False),
    ]

    def __init__(self, glyphs: Glyphs, keymap: Mapping[str, str]) -> None:
        super().__init__()
        self._keymap = keymap
        self._glyphs = glyphs

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help"):
            for title, rows in self._sections():
                yield Static(title, classes="help-title", markup=False)
                with Grid(classes="help-rows"):
                    for name, meaning in rows:
                        yield Static(name, markup=False)
                        yield Static(Content.styled(meaning, "$quiet"), markup=False)

    def on_resize(self) -> None:
        self.set_class(self.app.size.width < STACKED, "-stacked")

    def action_scroll(self, rows: int) -> None:
        """Scroll the page."""
        self.query_one("#help").scroll_relative(y=rows, animate=False)

    def _sections(self) -> Iterator[tuple[str, list[tuple[Content, str]]]]:
        yield "Tokens", [(Content.styled(name, STYLES[kind]), what) for kind, name, what in self._kinds()]
        yield "Figures", [(Content(name), meaning) for name, meaning in FIGURES]
        yield "Keys", [(Content(respelled(key, self._keymap)), meaning) for key, meaning in KEYS]
        yield "Commands", [(Content(f"/{c.name} {c.argument}".strip()), c.help) for c in COMMANDS]

    def _kinds(self) -> Iterator[tuple[str, str, str]]:
        yield "accepted", "accepted", "drafted, and the target said the same"
        yield (
            "rejected",
            f"{self._glyphs.rejected}rejected",
            "drafted, and the target said something else; above temperature 0: drew something else",
        )
        yield "unreached", "(unreached)", "drafted after a rejection, never judged"
        yield "correction", f"{self._glyphs.correction} correction", "the target's own token after a rejection"
        yield "bonus", f"{self._glyphs.bonus} bonus", "the target's own token after a chain without a rejection"
