"""Keys, commands, and what the marks and figures mean."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Grid, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from eagle3chat.engine.events import Info
from eagle3chat.key_map import KeyMap
from eagle3chat.key_table import CHAT, HELP, PLACES, PROMPT
from eagle3chat.ui.bindings import bindings
from eagle3chat.ui.commands import COMMANDS
from eagle3chat.ui.glyphs import Glyphs
from eagle3chat.ui.legend import figures, instead, kinds

KEYS = (
    ("<prompt.send>", "send"),
    ("<prompt.line*>, \\ <prompt.send>", "new line"),
    ("<chat.stop>", "stop the reply; what came stays"),
    ("<chat.interrupt>", "copy the selection, else stop, else clear the prompt, else leave (twice)"),
    ("<chat.again>", "another reply to the last message, with a new seed; the old one is kept"),
    ("<chat.alternative>", "the next of the replies to the last message"),
    ("<chat.copy>", "copy the last reply as Markdown source"),
    ("<chat.top*>", "the beginning of the last reply"),
    ("<chat.editor>", "write the draft in $EDITOR"),
    ("<chat.new>", "a new conversation"),
    ("<prompt.complete>", "complete a /command, or a path after @: the file's text goes with the message"),
    ("<chat.chain.auto>", "chain that finds its own length: the most tokens a second on this machine"),
    ("<chat.chain.shorter> / <chat.chain.longer>", "chain shorter / longer, from the next round on"),
    ("<chat.temperature.down> / <chat.temperature.up>", "temperature down / up by 0.1, from the next round on"),
    ("<chat.sessions>", "saved conversations: search, open, rename, fork, delete"),
    ("<chat.marks>", "marks in the reply: full, subtle, off"),
    (
        "<chat.inspect>",
        "inspect the rounds of a reply: each drafted token, its probabilities; <inspector.trace> there: the whole text",
    ),
    ("<chat.restart>", "start the worker again; the conversation stays"),
    ("<chat.page.up>, <chat.page.down>, <chat.start>, <chat.end>", "scroll the conversation"),
    ("up, down", "earlier messages, on the first and last line of the prompt"),
    ("<chat.commands>", "all commands"),
    ("<chat.quit>", "leave"),
)
ABOVE = tuple(place for place in PLACES if place not in (CHAT, PROMPT))
STACKED = 60  # cells of the terminal, below which a meaning stands under its name


class Help(ModalScreen[None]):
    """Everything on one page.

    Args:
        info: The pair that is open, whose figures and kinds of token are told.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(HELP)

    def __init__(self, glyphs: Glyphs, keymap: KeyMap, info: Info | None) -> None:
        super().__init__()
        self._info = info
        self._keymap = keymap
        self._glyphs = glyphs

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help", can_focus=False):  # it would take keys for itself
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

    def action_page(self, pages: int) -> None:
        """Scroll by pages."""
        body = self.query_one("#help")
        body.scroll_relative(y=pages * max(1, body.size.height - 1), animate=False)

    def action_edge(self, side: int) -> None:
        """The beginning or the end."""
        body = self.query_one("#help")
        (body.scroll_home if side < 0 else body.scroll_end)(animate=False)

    def _sections(self) -> Iterator[tuple[str, list[tuple[Content, str]]]]:
        told, info = self._keymap.told, self._info
        if rows := [(kind.sign, kind.meaning) for kind in kinds(info, self._glyphs)]:
            yield "Tokens", rows
        yield "Figures", [(Content(name), meaning) for name, meaning in self._figures()]
        yield "Keys", [(Content(told(key)), told(meaning)) for key, meaning in KEYS]
        yield "Commands", [(Content(f"/{c.name} {c.argument}".strip()), c.help) for c in COMMANDS]
        for place in ABOVE:
            keys = self._keymap.all_spelled
            yield f"Keys in {place.title}", [(Content(keys(row.id)), row.does) for row in place.rows]

    def _figures(self) -> Iterator[tuple[str, str]]:
        if other := instead(self._info):
            yield "rounds", other
        yield from figures(self._info, self._glyphs)
