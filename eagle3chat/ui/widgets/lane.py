"""The round lane: the newest rounds, one a row. Its height never changes, so nothing above it moves.

Rejected and unreached tokens are shown here and nowhere else: no text appears in the reply and disappears.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from rich.cells import cell_len
from textual.content import Content
from textual.widget import Widget

from eagle3chat.engine.events import Burst, Round, Token
from eagle3chat.ui.clean import clean_line, clean_token
from eagle3chat.ui.glyphs import Glyphs
from eagle3chat.ui.widgets.line import first_fitting

ROWS = 3  # at most
TOKEN_CELLS = 18  # a longer token is cut

STYLES = {
    "accepted": "$spec-accepted underline",
    "correction": "$spec-correction bold",
    "bonus": "$spec-bonus italic",
    "plain": "",
    "rejected": "$spec-rejected strike",
    "unreached": "$spec-unreached",
}


class Lane(Widget):
    """Rounds, or one line that says what is going on."""

    DEFAULT_CSS = """
    Lane { text-wrap: nowrap; text-overflow: ellipsis; }
    """
    ALLOW_SELECT = False

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__()
        self._glyphs = glyphs
        self._rounds: deque[tuple[Round, int]] = deque(maxlen=ROWS)  # with the rounds skipped before it
        self._status = ""
        self._legend: Sequence[Content] = ()

    def show_legend(self, variants: Sequence[Content]) -> None:
        """What stands there without rounds, the longest first."""
        self._legend = variants
        self.refresh()

    def show_rounds(self, rounds: Sequence[Round]) -> None:
        """New rounds, of which the last are shown."""
        if not rounds:
            return
        shown = rounds[-self._height :]
        skipped = len(rounds) - len(shown)
        for round_ in shown:
            self._rounds.append((round_, skipped))
            skipped = 0
        self._status = ""
        self.refresh()

    def show_status(self, text: str) -> None:
        """One line instead of rounds, until the next round."""
        self._status = clean_line(text)
        self.refresh()

    def clear(self) -> None:
        """Forget the rounds."""
        self._rounds.clear()
        self._status = ""
        self.refresh()

    @property
    def has_rounds(self) -> bool:
        """Whether there are rounds to show."""
        return bool(self._rounds)

    @property
    def _height(self) -> int:
        return max(1, self.content_size.height or ROWS)

    def render(self) -> Content:
        width, height = self.content_size
        if self._status:
            return Content.styled(self._status, "$quiet")
        if not self._rounds:
            return first_fitting(self._legend, width)
        newest = list(self._rounds)[-height:]
        return Content("\n").join(round_row(r, skipped, width, self._glyphs) for r, skipped in newest)


def short_legend(glyphs: Glyphs) -> Content:
    """The same where there is little room, without the unreached ones."""
    return Content.assemble(
        ("accepted", STYLES["accepted"]),
        " ",
        (f"{glyphs.rejected}rejected", STYLES["rejected"]),
        " ",
        (f"{glyphs.correction}correction", STYLES["correction"]),
        " ",
        (f"{glyphs.bonus}bonus", STYLES["bonus"]),
    )


def legend(glyphs: Glyphs) -> Content:
    """How each kind of token looks in the lane."""
    return Content.assemble(
        ("accepted", STYLES["accepted"]),
        "  ",
        (f"{glyphs.rejected}rejected", STYLES["rejected"]),
        "  ",
        ("(unreached)", STYLES["unreached"]),
        "  ",
        (f"{glyphs.correction} correction", STYLES["correction"]),
        "  ",
        (f"{glyphs.bonus} bonus", STYLES["bonus"]),
    )


def round_row(round_: Round, skipped: int, width: int, glyphs: Glyphs) -> Content:
    """One round: number, drafted tokens with their fate, the target's own token, accepted of drafted, time."""
    if round_.burst is not None:
        return burst_row(round_, round_.burst, skipped, width)
    narrow = width < 70
    number = f"{round_.index + 1:>4} " if narrow else f"{round_.index + 1:>5}{f' +{skipped}' if skipped else '':<4} "
    tail = f" {round_.accepted}/{len(round_.drafted)}"
    if not narrow:
        tail += f"{round_.seconds * 1000:>7.0f} ms "
    own = own_token(round_, glyphs)
    room = width - len(number) - len(tail) - own.cell_length - 1
    drafted = drafted_tokens(round_, glyphs)
    column = min(room, 56, max(drafted.cell_length + 1, (width - len(number)) * 5 // 10))
    if drafted.cell_length > column:
        drafted = drafted.truncate(max(0, column), ellipsis=True)
    body = Content.assemble((number, "$quiet"), drafted, " " * max(1, column - drafted.cell_length), own)
    gap = width - body.cell_length - len(tail)
    if not narrow:
        gap = min(gap, max(2, 92 - body.cell_length))
    return Content.assemble(body, " " * max(0, gap), (tail, "$quiet"))


def burst_row(round_: Round, burst: Burst, skipped: int, width: int) -> Content:
    """A piece of text as a server sent it: number, text, tokens, time."""
    tokens = "tokens not known" if burst.tokens is None else f"{burst.tokens} token{'s' if burst.tokens != 1 else ''}"
    number = f"{round_.index + 1:>5}{f' +{skipped}' if skipped else '':<4} "
    tail = f"  {tokens}" + (f"{round_.seconds * 1000:>7.0f} ms " if width >= 70 else "")
    text = Content(clean_line(round_.text)).truncate(max(0, width - len(number) - len(tail)), ellipsis=True)
    gap = min(width - len(number) - len(tail), 60) - text.cell_length
    return Content.assemble((number, "$quiet"), text, " " * max(0, gap), (tail, "$quiet"))


def drafted_tokens(round_: Round, glyphs: Glyphs) -> Content:
    """The drafted tokens in order: accepted, the one rejected, those never judged."""
    parts: list[tuple[str, str]] = []
    for token in round_.drafted[: round_.accepted]:
        parts.append((spelled(token, glyphs), STYLES["accepted"]))
    if (rejected := round_.rejected) is not None:
        parts.append((glyphs.rejected + spelled(rejected, glyphs), STYLES["rejected"]))
    for token in round_.unreached:
        parts.append((f"({spelled(token, glyphs)})", STYLES["unreached"]))
    return Content(" ").join(Content.assemble(part) for part in parts)


def own_token(round_: Round, glyphs: Glyphs) -> Content:
    """The target's own token with the sign of its kind; empty where a limit cut the round before it."""
    if round_.own is None or round_.own_kind is None:
        return Content("")
    sign = {"correction": glyphs.correction, "bonus": glyphs.bonus, "plain": glyphs.plain}[round_.own_kind]
    return Content.assemble((f"{sign} {spelled(round_.own, glyphs)}", STYLES[round_.own_kind]))


def spelled(token: Token, glyphs: Glyphs) -> str:
    """A token with visible white space, cut to a few cells."""
    text = clean_token(token.text, glyphs.ascii_only) or f"<{token.id}>"
    if len(text) <= TOKEN_CELLS * 2 and cell_len(text) <= TOKEN_CELLS:
        return text
    text = text[: TOKEN_CELLS * 2]
    while cell_len(text) > TOKEN_CELLS - 1:
        text = text[:-1]
    return text + glyphs.ellipsis[0]
