"""The race on the screen: two laps, their clocks, whether they said the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from eagle3chat.key_map import USUAL, KeyMap
from eagle3chat.key_table import RACE
from eagle3chat.ui.bindings import bindings
from eagle3chat.ui.clean import clean, clean_line
from eagle3chat.ui.figures import chain_state, number, plural
from eagle3chat.ui.glyphs import Glyphs
from eagle3chat.ui.race import Lap, Race

LOOK_SECONDS = 0.25
NARROW = 44  # cells, below which names are short
WIDE = 70  # cells, from which a running lap says how far it is
NAME, SPEED, CLOCK = 14, 12, 18  # cells of the columns beside the bar


class RaceScreen(ModalScreen[None]):
    """Looks at a race that the host runs.

    Args:
        stop: Ends it.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(RACE)

    def __init__(self, race: Race, glyphs: Glyphs, stop: Callable[[], None], keymap: KeyMap = USUAL) -> None:
        super().__init__()
        self._keymap = keymap
        self._race = race
        self._glyphs = glyphs
        self._stop = stop

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="race", classes="page", can_focus=False):  # it would take keys for itself
            yield Static(id="race-page", markup=False)
        yield Static(id="race-hint", classes="page-hint", markup=False)

    def on_mount(self) -> None:
        self._timer = self.set_interval(LOOK_SECONDS, self._show)
        self.call_after_refresh(self._show)

    def on_resize(self) -> None:
        self._show()

    def _show(self) -> None:
        width = max(20, self.query_one("#race").scrollable_content_region.width)
        self.query_one("#race-page", Static).update(Content("\n").join(race_lines(self._race, width, self._glyphs)))
        hint = self._keymap.told("<race.close> close" if self._race.over else "<race.close> stop")
        self.query_one("#race-hint", Static).update(Content.styled(hint, "$quiet"))
        if self._race.over:
            self._timer.stop()

    def action_close(self) -> None:
        """Stop the race; close it when it is over."""
        if self._race.over:
            self.dismiss()
        else:
            self._stop()

    def action_scroll(self, rows: int) -> None:
        """Scroll the page."""
        self.query_one("#race").scroll_relative(y=rows, animate=False)

    def action_page(self, pages: int) -> None:
        """Scroll by pages."""
        body = self.query_one("#race")
        body.scroll_relative(y=pages * max(1, body.size.height - 1), animate=False)


def race_lines(race: Race, width: int, glyphs: Glyphs) -> Iterator[Content]:
    """The page of a race."""
    plain, fast = race.laps
    sampling = fast.controls.sampling
    yield Content.styled("race", "bold") + Content.styled(
        f"   {clean_line(race.messages[-1].content)}", "$quiet"
    ).truncate(max(0, width - 4), ellipsis=True)
    settings = f"{chain_state(None, fast.controls)}, T {number(sampling.temperature)}, seed {sampling.seed}"
    yield Content.styled(f"one prompt, one seed: decoded plainly, then with speculation ({settings})", "$quiet")
    yield Content("")
    longest = max(plain.seconds, fast.seconds)
    for lap in race.laps:
        yield lap_line(lap, race, longest, width, glyphs)
    yield Content("")
    yield from verdict_lines(race)
    yield Content("")
    if text := clean(race.laps[0].text).rstrip():
        yield Content.styled(text, "$quiet")


def lap_line(lap: Lap, race: Race, longest: float, width: int, glyphs: Glyphs) -> Content:
    """Name, speed, a bar as long as its time, the clock."""
    name = f"{lap.name:<{NAME}}" if width >= NARROW else f"{lap.name.replace('ulative', '.'):<6}"
    if lap is race.lap and not lap.rounds:
        return Content.styled(f"{name}reading the prompt {lap.reading}".rstrip(), "$quiet")
    if not lap.rounds:
        return Content.styled(f"{name}{'stopped' if race.over else 'waits'}", "$quiet")
    speed = f"{lap.tokens_per_second:>{5 if width >= NARROW else 3}.0f} tok/s "
    clock = f" {lap.seconds:.2f} s"
    if lap is race.laps[1] and race.over and race.speedup:
        clock += f"{'   ' if width >= NARROW else ' '}{race.speedup:.2f}x"
    running = lap is race.lap
    so_far = f"  {len(lap.ids)} of at most {race.limit}" if running and width >= WIDE else ""
    room = max(0, width - len(name) - SPEED - max(CLOCK, len(clock) + len(so_far)))
    bar = (glyphs.levels[-1] * max(1, round(room * lap.seconds / longest))) if longest and room else ""
    style = "$spec-accepted" if lap is race.laps[1] else "$quiet"
    return Content.assemble(
        (name, "bold" if running else ""),
        speed,
        (bar, style),
        (clock, "bold"),
        (so_far, "$quiet"),
    )


def verdict_lines(race: Race) -> Iterator[Content]:
    """Whether the laps said the same; what a stop or a failure left."""
    plain, fast = race.laps
    if race.failure:
        yield Content.styled(clean_line(race.failure), "$text-error")
    elif race.stopped:
        yield Content("stopped")
    elif race.over:
        count = plural(len(plain.ids), "token")
        if (at := race.difference) is None:
            yield Content(f"{'text':<{NAME}}identical, {count}")
        else:
            yield Content.styled(f"{'text':<{NAME}}differs from token {at + 1} of {count} on", "$text-error")
        usage = fast.finished.usage if fast.finished is not None else None
        if usage is not None and usage.rounds:
            passes = f"{plain.rounds} passes of the target, then {usage.rounds}: tau {usage.tau:.2f}"
            for line in (passes, "the prompt is in neither clock"):
                yield Content.styled(f"{'':<{NAME}}{line}", "$quiet")
