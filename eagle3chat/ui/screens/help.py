"""Keys, commands, and what the marks and figures mean."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from eagle3chat.ui.commands import COMMANDS
from eagle3chat.ui.glyphs import Glyphs
from eagle3chat.ui.widgets.lane import STYLES

KEYS = (
    ("Enter", "send"),
    ("shift+enter, ctrl+j, \\ Enter", "new line"),
    ("Esc", "stop the reply; what came stays"),
    ("ctrl+c", "copy the selection, else stop, else clear the prompt, else leave (twice)"),
    ("F8 / F9", "chain shorter / longer, from the next round on"),
    ("ctrl+g / ctrl+t", "temperature down / up by 0.1, from the next round on"),
    ("F3", "marks in the reply: full, subtle, off"),
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
    ("accepted of tested", "tested = accepted + rejected; drafts after a rejection are never judged"),
    ("tok/s", "tokens / seconds of the rounds, on the worker's clock; the prompt is not in it"),
    ("context", "positions in use of those that the caches hold"),
)


class Help(ModalScreen[None]):
    """Everything on one page."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f1,q,enter", "dismiss", "Close", id="help.close"),
        Binding("down,j", "scroll(1)", "Down", id="help.down", show=False),
        Binding("up,k", "scroll(-1)", "Up", id="help.up", show=False),
    ]

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__()
        self._glyphs = glyphs

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help"):
            yield Static(self._page(), markup=False)

    def action_scroll(self, rows: int) -> None:
        """Scroll the page."""
        self.query_one("#help").scroll_relative(y=rows, animate=False)

    def _page(self) -> Content:
        kinds = (
            ("accepted", "accepted", "drafted, and the target said the same"),
            ("rejected", f"{self._glyphs.rejected}rejected", "drafted, and the target said something else"),
            ("unreached", "(unreached)", "drafted after a rejection, never judged"),
            ("correction", f"{self._glyphs.correction} correction", "the target's own token after a rejection"),
            ("bonus", f"{self._glyphs.bonus} bonus", "the target's own token after a chain without a rejection"),
        )
        lines = [Content.styled("Tokens", "bold")]
        lines += [self._row(Content.styled(name, STYLES[kind]), meaning) for kind, name, meaning in kinds]
        lines.append(
            self._row(
                Content(""), "Above temperature 0 rejected means: not what the target drew. The text is the target's."
            )
        )
        lines += [Content(""), Content.styled("Figures", "bold")]
        lines += [self._row(Content(name), meaning) for name, meaning in FIGURES]
        lines += [Content(""), Content.styled("Keys", "bold")]
        lines += [self._row(Content(key), meaning) for key, meaning in KEYS]
        lines += [Content(""), Content.styled("Commands", "bold")]
        lines += [self._row(Content(f"/{c.name} {c.argument}".strip()), c.help) for c in COMMANDS]
        return Content("\n").join(lines)

    def _row(self, name: Content, meaning: str) -> Content:
        wide = self.app.size.width > 90
        indent = 34 if wide else 20
        return Content.assemble("  ", name, " " * max(2, indent - name.cell_length), (meaning, "$quiet"))
