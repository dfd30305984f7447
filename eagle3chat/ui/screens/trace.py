"""The trace of a reply: its whole text, plain, each token in the style of its kind, and what was drafted in vain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from eagle3chat.engine.events import Round
from eagle3chat.key_map import USUAL, KeyMap
from eagle3chat.key_table import TRACE
from eagle3chat.ui.bindings import bindings
from eagle3chat.ui.clean import clean
from eagle3chat.ui.figures import plural
from eagle3chat.ui.glyphs import Glyphs
from eagle3chat.ui.marks import Marker, Piece
from eagle3chat.ui.tally import Tally
from eagle3chat.ui.widgets.lane import STYLES, legend, spelled
from eagle3chat.ui.widgets.line import first_fitting, joined

AT_ONCE = 80  # rounds of one widget: a long reply is many
_SCROLL, _REPLY = "<trace.up>/<trace.down>", "<trace.reply.before>/<trace.reply.next> reply"
_REST = "<trace.drafts> drafts", "<trace.close> close"
HINTS = (
    "   ".join((f"{_SCROLL}, <trace.page.up>/<trace.page.down> scroll", _REPLY, *_REST)),
    "  ".join((f"{_SCROLL} scroll", _REPLY, *_REST)),
    "  ".join((_REPLY, *_REST)),
    "  ".join(_REST),
)


class Trace(ModalScreen[None]):
    """One reply.

    Args:
        replies: The rounds of each reply of the conversation, oldest first. Not empty.
        place: The reply to begin with.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(TRACE)

    def __init__(self, replies: Sequence[Sequence[Round]], glyphs: Glyphs, place: int, keymap: KeyMap = USUAL) -> None:
        super().__init__()
        self._keymap = keymap
        self._replies = replies
        self._glyphs = glyphs
        self._place = place
        self._drafts = True

    def compose(self) -> ComposeResult:
        yield Static(id="trace-title", classes="page-title", markup=False)
        yield VerticalScroll(id="trace", classes="page", can_focus=False)  # it would take keys for itself
        yield Static(id="trace-hint", classes="page-hint", markup=False)

    async def on_mount(self) -> None:
        await self._show()

    def on_resize(self) -> None:
        self._show_lines()

    async def _show(self) -> None:
        body = self.query_one("#trace", VerticalScroll)
        with self.app.batch_update():
            await body.remove_children()
            await body.mount_all(
                Static(part, markup=False) for part in parts(self._replies[self._place], self._drafts, self._glyphs)
            )
        body.scroll_home(animate=False)
        self._show_lines()

    def _show_lines(self) -> None:
        width = max(20, self.query_one("#trace-title").content_size.width or self.size.width - 6)
        rounds = self._replies[self._place]
        tally = Tally()
        for round_ in rounds:
            tally.add(round_)
        title = f"reply {self._place + 1} of {len(self._replies)}"
        counts = [plural(tally.emitted, "token"), plural(tally.rounds, "round"), f"tau {tally.tau:.2f}"]
        if tally.bursts:
            counts = [plural(tally.bursts, "piece"), "drafts not visible"]
        dot = f" {self._glyphs.dot} "
        heads = [joined([(title, "bold"), *counts[:n]], dot) for n in range(len(counts), -1, -1)]
        self.query_one("#trace-title", Static).update(first_fitting(heads, width))
        hints = [Content.styled(self._keymap.told(text), "$quiet") for text in HINTS]
        if tally.longest:  # otherwise there are no kinds to tell apart
            hints.insert(0, Content.assemble(hints[0], "   ", legend(self._glyphs)))
        self.query_one("#trace-hint", Static).update(first_fitting(hints, width))

    async def action_reply(self, step: int) -> None:
        """The reply before or after."""
        self._place = max(0, min(self._place + step, len(self._replies) - 1))
        await self._show()

    async def action_drafts(self) -> None:
        """Show or hide what was drafted in vain; without it the text is the reply."""
        self._drafts = not self._drafts
        await self._show()

    def action_scroll(self, rows: int) -> None:
        """Scroll by rows."""
        self.query_one("#trace").scroll_relative(y=rows, animate=False)

    def action_page(self, pages: int) -> None:
        """Scroll by pages."""
        body = self.query_one("#trace")
        body.scroll_relative(y=pages * max(1, body.size.height - 1), animate=False)

    def action_edge(self, side: int) -> None:
        """The beginning or the end."""
        body = self.query_one("#trace")
        (body.scroll_home if side < 0 else body.scroll_end)(animate=False)


def parts(rounds: Sequence[Round], drafts: bool, glyphs: Glyphs) -> Iterator[Content]:
    """The text of a reply in stretches that end at line ends.

    Args:
        drafts: With the tokens that were drafted in vain, each before the one that the target said.
    """
    marker = Marker()
    waiting: list[Content] = []
    begun = 0
    for number, round_ in enumerate(rounds, start=1):
        pieces = marker.take(round_)
        vain = list(in_vain(round_, glyphs)) if drafts else []
        cut = next((i for i, piece in enumerate(pieces) if piece.kind != "accepted"), len(pieces))
        waiting += [*map(drawn, pieces[:cut]), *vain, *map(drawn, pieces[cut:])]
        last = pieces[-1].text if pieces else ""
        if number - begun >= AT_ONCE and last.endswith("\n"):
            yield Content("").join(waiting)[:-1]  # the next one begins a row of its own
            waiting, begun = [], number
    if waiting:
        yield Content("").join(waiting)


def drawn(piece: Piece) -> Content:
    """A stretch of the reply."""
    return Content.styled(clean(piece.text), STYLES[piece.kind])


def in_vain(round_: Round, glyphs: Glyphs) -> Iterator[Content]:
    """What a round drafted and the reply does not hold."""
    if round_.rejected is not None:
        yield Content.styled(f"{glyphs.rejected}{spelled(round_.rejected, glyphs)}", STYLES["rejected"])
    for token in round_.unreached:
        yield Content.styled(f"({spelled(token, glyphs)})", STYLES["unreached"])
