"""What frames write, cell by cell, against the whole screen drawn anew; and how many frames a flush takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace

import pytest
from driving import Driver, running
from fake_worker import rounds_of, tokens_of, whole_reply
from rich.cells import cell_len
from rich.segment import Segment
from textual.geometry import Region
from textual.strip import Strip

from eagle3chat.ui.composition import Composition, Stretches
from eagle3chat.ui.widgets.paragraph import Paragraph

TEXT = "Some words 漢字 of a *long* reply that goes on. " * 6
REPLY = f"{TEXT}\n\n- one\n- two 漢字\n\n```python\nx = 1\n```\n\n# Head\n\n{TEXT}\n\n{TEXT}\n\nEnd."
Cell = tuple[str, str]


def cells(segments: Iterable[Segment]) -> list[Cell]:
    """Characters with their looks, one a cell; a wide one is followed by an empty one."""
    found: list[Cell] = []
    for text, style, _ in segments:
        look = "" if style is None else str(style.without_color) + str(style.color) + str(style.bgcolor)
        for char in text:
            found.append((char, look if char.strip() else ""))
            found += [("", "")] * (cell_len(char) - 1)
    return found


class Terminal:
    """The cells that frames have written so far."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: dict[int, list[Cell]] = {}
        self.frames = 0
        self._partial, self._full = Composition.render_partial_update, Composition.render_full_update
        monkeypatch.setattr(Composition, "render_partial_update", lambda map: self._take(map, self._partial(map)))
        monkeypatch.setattr(Composition, "render_full_update", lambda map, simplify=False: self._anew(map, simplify))

    def _take(self, map: Composition, update: Stretches | None) -> Stretches | None:
        if update is not None:
            self.frames += 1
            for y, pieces in update.rows.items():
                for x, strip in pieces:
                    assert strip.cell_length == sum(cell_len(segment.text) for segment in strip)
                    self.rows[y][x : x + strip.cell_length] = cells(strip)
        return update

    def _anew(self, map: Composition, simplify: bool) -> object:
        self.rows = dict(enumerate(map_rows(map)))
        return self._full(map, simplify)


def map_rows(map: Composition) -> list[list[Cell]]:
    return [cells(strip) for strip in map.render_strips()]


async def assert_same(terminal: Terminal, driver: Driver) -> None:
    """Frames come at a rate of their own, so what is asked for is that it comes to be the same."""

    def differing() -> list[int]:
        wanted = map_rows(driver.app.screen._compositor)  # type: ignore[arg-type]
        return [y for y, row in enumerate(wanted) if terminal.rows[y] != row]

    for _ in range(20):
        if not differing():
            return
        await driver.pilot.pause(0.01)
    assert differing() == []


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    return Terminal(monkeypatch)


@pytest.mark.parametrize("size", [(120, 34), (40, 12)])
async def test_frames_leave_what_the_whole_screen_would_be(terminal: Terminal, size: tuple[int, int]) -> None:
    async with running(size) as driver:
        await driver.say("go 漢字")
        events = whole_reply(REPLY)
        for at in range(0, len(events), 9):
            await driver.emit(*events[at : at + 9])
            await assert_same(terminal, driver)
        await driver.coloured()
        for act in scrolling(driver):
            act()
            await assert_same(terminal, driver)
        assert terminal.frames > 10


def scrolling(driver: Driver) -> list[Callable[[], object]]:
    conversation = driver.app.stage.conversation
    return [
        lambda: conversation.scroll_home(animate=False),
        lambda: conversation.scroll_relative(y=5, animate=False),
        lambda: conversation.scroll_end(animate=False),
        lambda: driver.app.stage.keys.tell("a notice"),
        lambda: driver.app.action_marks(),
        lambda: setattr(driver.app, "theme", "eagle-light"),
    ]


async def test_a_flush_is_one_frame(terminal: Terminal) -> None:
    async with running((120, 34)) as driver:
        await driver.say("go")
        rounds = rounds_of(tokens_of(TEXT * 14))
        driver.app._stream(False)  # the timer: here each piece of the reply is fetched once
        await driver.emit(*rounds[:180])
        await driver.pilot.pause(0.05)
        for at in range(180, 300, 20):
            before, rows = terminal.frames, driver.app.stage.conversation.virtual_size.height
            await driver.emit(*rounds[at : at + 20])
            await driver.pilot.pause(0.05)
            assert driver.app.stage.conversation.virtual_size.height > rows
            assert terminal.frames == before + 1


async def test_a_flush_that_settles_blocks_is_one_frame(terminal: Terminal) -> None:
    async with running((120, 34)) as driver:
        await driver.say("go")
        driver.app._stream(False)
        rounds = rounds_of(tokens_of("A paragraph of some words.\n\n" * 40))
        await driver.emit(*rounds[:60])
        await driver.pilot.pause(0.05)
        before, blocks = terminal.frames, len(driver.app.query(Paragraph))
        await driver.emit(*rounds[60:80])
        await driver.pilot.pause(0.05)
        assert len(driver.app.query(Paragraph)) > blocks + 2
        assert terminal.frames == before + 1


async def test_a_frame_draws_what_it_touches(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running((120, 34)) as driver:
        stage, drawn = driver.app.stage, []
        draw = type(stage._header).render_lines
        monkeypatch.setattr(
            type(stage._header), "render_lines", lambda self, crop: (drawn.append(crop), draw(self, crop))[1]
        )
        stage._lane.show_status("something")
        await driver.pilot.pause(0.05)
        assert drawn == []
        stage._header.show_used(77)
        await driver.pilot.pause(0.05)
        assert len(drawn) == 1


async def test_rows_that_are_kept_take_another_theme() -> None:
    async with running((80, 24)) as driver:
        await driver.say("go")
        await driver.emit(*whole_reply("A paragraph."))
        block = driver.app.query_one(Paragraph)
        crop = Region(0, 0, block.size.width, 1)
        dark = cells(block.render_lines(crop)[0])
        assert block.render_lines(crop) is block.render_lines(crop)
        driver.app.theme = "eagle-light"
        await driver.pilot.pause(0.05)
        light = cells(block.render_lines(crop)[0])
        assert "".join(char for char, _ in light) == "".join(char for char, _ in dark)
        assert not {look for _, look in light if look} & {look for _, look in dark if look}


def test_the_cursor_moves_once_to_pieces_that_touch() -> None:
    pieces = [(2, Strip([Segment("ab")])), (4, Strip([Segment("c")])), (9, Strip([Segment("d")]))]
    console = SimpleNamespace(_color_system=None)
    assert Stretches({3: pieces}).render_segments(console) == "\x1b[4;3Habc\x1b[4;10Hd"  # type: ignore[arg-type]


def test_nothing_changed_is_no_frame() -> None:
    composition = Composition()
    assert composition.render_partial_update() is None
    composition._dirty_regions.add(Region(0, 0, 0, 0))
    assert composition.render_partial_update() is None
