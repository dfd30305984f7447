"""Keys of the screens above the chat from the settings: the new key works, the usual one does not, hints tell it."""

from __future__ import annotations

from driving import Driver, running
from fake_worker import finished, rounds_of, tokens_of, whole_reply
from test_replay_app import recording, until
from test_session_pictures import NOW, FakeIndex
from textual.binding import Binding
from textual.widgets import Input

from eagle3chat.key_table import PLACES
from eagle3chat.models import Model
from eagle3chat.ui.app import ChatApp
from eagle3chat.ui.replay_app import ReplayApp
from eagle3chat.ui.screens.help import Help
from eagle3chat.ui.screens.inspector import Inspector
from eagle3chat.ui.screens.models import Models
from eagle3chat.ui.screens.palette import Palette
from eagle3chat.ui.screens.parameters import ParameterPanel
from eagle3chat.ui.screens.race import RaceScreen
from eagle3chat.ui.screens.sessions import Sessions
from eagle3chat.ui.screens.trace import Trace
from eagle3chat.ui.widgets.find_box import FindBox
from eagle3chat.ui.widgets.prompt_area import PromptArea

TEXT = "one two three four five six seven eight nine ten"


def above(driver: Driver, kind: type) -> bool:
    return isinstance(driver.app.screen, kind)


def test_every_binding_of_every_screen_is_a_row_of_the_table():
    kinds = (ChatApp, ReplayApp, PromptArea, Help, Inspector, FindBox, Trace, Sessions, Models, ParameterPanel)
    bound = [b for kind in (*kinds, RaceScreen, Palette) for b in kind.__dict__["BINDINGS"]]
    assert all(isinstance(b, Binding) and b.id for b in bound)
    rows = [(row.id, row.keys, row.action) for place in PLACES for row in place.rows]
    assert sorted((b.id, b.key, b.action) for b in bound) == sorted(rows)


async def test_the_inspector_its_search_and_the_trace():
    keys = {
        "inspector.back": "b",
        "inspector.find": "?",
        "inspector.again": "m",
        "inspector.trace": "w",
        "inspector.close": "x",
        "find.go": "ctrl+s",
        "trace.drafts": "v",
        "trace.down": "s",
        "trace.close": "x,escape",
    }
    async with running((100, 24), keys=keys) as driver:
        await driver.say("go")
        await driver.emit(*whole_reply(TEXT * 3))
        await driver.pilot.press("f4")
        inspector = driver.app.screen
        assert isinstance(inspector, Inspector)
        last = inspector.place[1]
        await driver.pilot.press("left", "h", "b")
        assert inspector.place == (0, last - 1)
        assert "b/right round" in driver.line_with("x close") and "w text" in driver.line_with("x close")
        await driver.pilot.press("slash")
        assert not inspector.query_one(FindBox).display
        await driver.pilot.press("?", *"six")  # the x is a letter of the search
        assert inspector.query_one(FindBox).value == "six"
        assert driver.line_with("ctrl+s find   Esc close the search")
        await driver.pilot.press("enter")
        assert inspector.query_one(FindBox).display
        await driver.pilot.press("ctrl+s")
        await driver.pilot.pause()
        found = inspector.place[1]
        assert "six" in "".join(t.text for t in driver.app.chat.rounds[0][found].tokens)
        await driver.pilot.press("n")
        assert inspector.place[1] == found
        await driver.pilot.press("m")
        assert inspector.place[1] not in (found, last)
        await driver.pilot.press("t")
        assert driver.app.screen is inspector
        await driver.pilot.press("w")
        await driver.until(lambda: above(driver, Trace))
        assert "up/s" in driver.line_with("v drafts") and driver.line_with("x close")
        assert any("(" in line for line in driver.lines())
        await driver.pilot.press("d", "t", "q")
        assert above(driver, Trace) and any("(·" in line for line in driver.lines())
        await driver.pilot.press("v")
        await driver.pilot.pause()
        assert not any("(·" in line for line in driver.lines())
        await driver.pilot.press("x")
        await driver.until(lambda: driver.app.screen is inspector)
        await driver.pilot.press("escape", "f4", "q")
        assert driver.app.screen is inspector
        await driver.pilot.press("x")
        await driver.until(lambda: not above(driver, Inspector))


async def test_the_trace_and_the_help_scroll_by_their_keys_alone():
    keys = {"trace.down": "s", "trace.page.down": "f", "trace.last": "g", "help.down": "s", "help.page.down": "f"}
    async with running((60, 16), keys=keys) as driver:
        await driver.say("go")
        await driver.emit(*whole_reply(f"{TEXT}\n" * 40))
        await driver.say("/trace")
        await driver.until(lambda: above(driver, Trace))
        await driver.pilot.press("down", "pagedown", "end", "j", "space")
        assert driver.app.screen.query_one("#trace").scroll_y == 0
        await driver.pilot.press("s", "s")
        await driver.pilot.pause()
        assert driver.app.screen.query_one("#trace").scroll_y == 2
        await driver.pilot.press("f")
        await driver.pilot.pause()
        assert driver.app.screen.query_one("#trace").scroll_y > 5
        await driver.pilot.press("escape", "f1")
        await driver.until(lambda: above(driver, Help))
        await driver.pilot.press("down", "pagedown")
        assert driver.app.screen.query_one("#help").scroll_y == 0
        await driver.pilot.press("s", "f")
        await driver.pilot.pause()
        assert driver.app.screen.query_one("#help").scroll_y > 5


async def test_the_sessions():
    keys = {"sessions.open": "f10", "sessions.rename": "f11", "sessions.down": "alt+j", "sessions.close": "alt+q"}
    async with running((100, 24), keys=keys) as driver:
        opened: list[object] = []
        screen = Sessions(FakeIndex(), None, driver.app.glyphs, clock=lambda: NOW, keymap=driver.app.keymap)  # type: ignore[arg-type]
        driver.app.push_screen(screen, opened.append)
        await driver.pilot.pause()
        await driver.until(lambda: "looking" not in "".join(driver.lines()))
        assert "F10 open" in driver.line_with("F11 rename") and "alt+q close" in driver.line_with("F11 rename")
        await driver.pilot.press("down", "alt+j", "alt+j", "enter", "escape", "ctrl+r")
        assert screen._list.place == 2 and driver.app.screen is screen and screen._named is None
        await driver.pilot.press("f11")
        assert driver.line_with("F10 names it") and "alt+q leaves it" in driver.line_with("F10 names it")
        await driver.pilot.press("ctrl+t", "alt+j")  # nothing of the list while a title is written
        assert not screen._deleted and screen._list.place == 2
        await driver.pilot.press("alt+q")
        assert screen._named is None and driver.app.screen is screen
        await driver.pilot.press("f10")
        await driver.until(lambda: bool(opened))
        assert str(opened[0]) == "id24.jsonl"


async def test_the_models(tmp_path):
    keys = {"models.open": "f10", "models.down": "alt+j"}
    found = [Model(tmp_path / name, name, "", 1) for name in "abc"]
    async with running(keys=keys) as driver:
        opened: list[object] = []
        driver.app.push_screen(Models("", driver.app.glyphs, lambda: found, keymap=driver.app.keymap), opened.append)
        await driver.pilot.pause()
        await driver.until(lambda: "looking" not in "".join(driver.lines()))
        assert driver.line_with("F10 open   up/alt+j choose   Esc close")
        await driver.pilot.press("down", "alt+j", "enter")
        assert not opened
        await driver.pilot.press("f10")
        await driver.until(lambda: bool(opened))
        assert opened == [str(tmp_path / "b")]


async def test_the_parameters():
    async with running(keys={"parameters.apply": "f10", "parameters.down": "alt+j"}) as driver:
        driver.app.action_params()
        await driver.pilot.pause()
        assert driver.line_with("F10 apply   up/alt+j field   Esc leave as it was")
        first = driver.app.focused
        await driver.pilot.press("down")
        assert driver.app.focused is first
        await driver.pilot.press("alt+j")
        assert driver.app.focused is not first
        driver.app.screen.query_one("#field-seed", Input).value = "99"
        await driver.pilot.press("enter")
        assert above(driver, ParameterPanel)
        await driver.pilot.press("f10")
        await driver.until(lambda: driver.app.chat.controls.sampling.seed == 99)


async def test_the_race():
    async with running((100, 24), keys={"race.close": "z"}) as driver:
        await driver.say("/race Run.")
        await driver.until(lambda: above(driver, RaceScreen))
        await driver.until(lambda: any("z stop" in line for line in driver.lines()))
        for length in (0, 2):
            laps = rounds_of(tokens_of("Run."), chain=length)
            await driver.emit(*laps, finished(laps))
        await driver.until(lambda: any("z close" in line for line in driver.lines()))
        await driver.pilot.press("escape", "q", "enter")
        assert above(driver, RaceScreen)
        await driver.pilot.press("z")
        await driver.until(lambda: not above(driver, RaceScreen))


async def test_the_help_tells_the_keys_of_every_screen():
    keys = {"help.close": "x", "inspector.trace": "w", "chat.inspect": "f10", "sessions.rename": "f11"}
    async with running((120, 200), keys=keys) as driver:
        await driver.pilot.press("f1")
        await driver.until(lambda: above(driver, Help))
        assert driver.line_with("w there: the whole text")
        assert driver.line_with("inspect the rounds of a reply").lstrip(" │▎").startswith("F10")
        assert "w " in driver.line_with("the whole text of the reply")
        assert "F11" in driver.line_with("rename it")
        for place in PLACES[2:]:
            assert driver.line_with(f"Keys in {place.title}")
        await driver.pilot.press("escape", "f1", "q", "enter")
        assert above(driver, Help)
        await driver.pilot.press("x")
        await driver.until(lambda: not above(driver, Help))


async def test_the_commands_and_the_themes():
    keys = {"chat.commands": "f10", "commands.choose": "ctrl+s", "commands.close": "alt+q", "commands.down": "alt+j"}
    async with running(keys=keys) as driver:
        assert "F10 commands" in driver.lines()[-1]
        await driver.pilot.press("ctrl+p")
        assert not above(driver, Palette)
        await driver.pilot.press("f10")
        await driver.until(lambda: above(driver, Palette))
        await driver.pilot.press(*"/marks")
        await driver.until(lambda: any("Marks of token kinds" in line for line in driver.lines()))
        await driver.pilot.press("escape", "enter")
        assert above(driver, Palette)
        await driver.pilot.press("alt+j", "ctrl+s")
        await driver.until(lambda: driver.notice == "marks subtle")
        driver.app.action_change_theme()
        await driver.until(lambda: above(driver, Palette))
        await driver.pilot.press(*"nord")
        await driver.until(lambda: any(line.strip(" ▌▐│") == "nord" for line in driver.lines()))
        await driver.pilot.press("alt+j", "ctrl+s")
        await driver.until(lambda: driver.app.theme == "nord")
        await driver.pilot.press("f10", "alt+q")
        await driver.until(lambda: not above(driver, Palette))


async def test_a_replay(tmp_path):
    app = recording(tmp_path, speed=0.01, keys={"replay.hold": "h", "replay.faster": "f", "chat.stop": "f10"})
    async with app.run_test() as pilot:
        await pilot.press("space", "plus")
        assert "x0.01 runs   h hold  f/- speed  F10 skip  q leave" in app.stage.keys.notice
        await pilot.press("h")
        assert "held: right steps" in app.stage.keys.notice
        await pilot.press("f")
        assert "x0.02" in app.stage.keys.notice
        await until(pilot, lambda: app.chat.phase == "idle")
        app.link.close()


async def test_what_is_told_names_the_persons_own_keys():
    keys = {"chat.chain.longer": "f10", "chat.restart": "alt+r", "chat.again": "alt+a", "prompt.complete": "ctrl+b"}
    async with running(keys=keys, size=(100, 24)) as driver:
        await driver.pilot.press("f8", "f8", "f8", "f8")
        assert "F10 makes it longer" in driver.notice
        await driver.say("go")
        await driver.emit(*whole_reply(TEXT))
        await driver.say("/alternative")
        assert "alt+a asks for another one" in driver.notice
        helps = {c.title: c.help for c in driver.app.get_system_commands(driver.app.screen)}
        assert helps["/chain N|auto"].startswith("F7/F8/F10: ") and helps["/restart"].startswith("alt+r: ")
