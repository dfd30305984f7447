"""A person walks through each part of the chat, by keys."""

from pathlib import Path

import pytest
from driving import running
from fake_worker import INFO, finished, rounds_of, tokens_of, whole_reply
from textual import events

from eagle3chat.transcript import Transcript, list_transcripts, load
from eagle3chat.transcript_line import exchanges
from eagle3chat.ui import clipboard
from eagle3chat.ui.commands import COMMANDS
from eagle3chat.ui.screens.help import Help
from eagle3chat.ui.screens.inspector import Inspector
from eagle3chat.ui.screens.parameters import ParameterPanel
from eagle3chat.ui.screens.race import RaceScreen
from eagle3chat.ui.screens.sessions import Sessions
from eagle3chat.ui.screens.trace import Trace

ODD = (
    "A List<String> and 0<n or n>9 stay, also <!-- unclosed.\n\nMathematics \\(a\\_b\\) and C:\\new\\temp too.\n\n"
    "```\n" + "x" * 300 + "\n```\n\n```python\ndef f():\n\treturn 1\n```\n\nEnd."
)


async def typed(driver, text):
    """Type a line with keys, and send it."""
    names = {"/": "slash", " ": "space", ".": "full_stop", "?": "question_mark", "-": "minus", "@": "at"}
    await driver.pilot.press(*(names.get(char, char) for char in text), "enter")
    await driver.pilot.pause()


def said(driver):
    return [(e.said, e.reply.text) for e in driver.app.chat.exchanges]


def kept(path):
    return [(e.said, e.reply.text) for e in exchanges(load(path))]


async def test_a_conversation(tmp_path):
    transcript = Transcript.create(tmp_path)
    async with running((100, 24), transcript=transcript) as driver:
        await typed(driver, "one")
        await driver.emit(*whole_reply(ODD))
        shown = "".join(driver.shown().split())
        for part in ("List<String>", "0<norn>9", "<!--unclosed.", "\\(a\\_b\\)", "C:\\new\\temp", "x" * 300):
            assert part in shown
        await driver.pilot.press("pageup", "f12")
        assert "more below" in driver.lines()[-1]
        await driver.pilot.press("ctrl+end")
        await typed(driver, "two")
        start = rounds_of(tokens_of("Half of a long reply"))
        await driver.emit(*start)
        await driver.pilot.press("escape")
        await driver.emit(finished(start, "cancelled"))
        await typed(driver, "/continue")
        await driver.emit(*whole_reply(" and the rest.", position=60))
        await driver.pilot.press("ctrl+r")
        await driver.emit(*whole_reply("Another."))
        await driver.pilot.press("ctrl+l")
        await driver.until(lambda: said(driver)[-1] == ("two", "Half of a long reply and the rest."))
        before = said(driver)
        await typed(driver, "/delete")
        assert said(driver) == before[:1] and "/undo" in driver.notice
        await typed(driver, "/undo")
        assert said(driver) == before == kept(transcript.path)
        assert "the rest." in driver.shown()
        await typed(driver, "/edit 1")
        await typed(driver, " b")
        await driver.emit(*whole_reply("New."))
        assert said(driver) == [("one b", "New.")] == kept(transcript.path)
        await typed(driver, "/undo")
        assert said(driver) == before == kept(transcript.path)
        await typed(driver, "/undo")
        assert "nothing to undo" in driver.notice
        driver.app.stage.prompt.area.text = ""
        await typed(driver, "/find temp")
        assert "message 1 of 2" in driver.notice
        await typed(driver, "/find nowhere")
        assert "No turn holds" in driver.notice


async def test_undo_never_takes_what_was_said_since():
    async with running() as driver:
        for word in ("one", "two"):
            await typed(driver, word)
            await driver.emit(*whole_reply(f"To {word}."))
        await typed(driver, "/delete")
        for word in ("three", "four"):
            await typed(driver, word)
            await driver.emit(*whole_reply(f"To {word}."))
        await typed(driver, "/undo")
        assert "went on since" in driver.notice
        assert [q for q, _ in said(driver)] == ["one", "three", "four"]


async def test_speculation():
    async with running((160, 30)) as driver:
        await typed(driver, "go")
        rounds = rounds_of(tokens_of("Some words of a reply that goes on for a while and then a bit longer."))
        await driver.emit(*rounds[:4])
        await driver.pilot.press("f3", "f3", "f3", "f9", "f7")
        assert "F4 says why" in driver.notice
        await driver.pilot.press("f7", "f9", "f8", "ctrl+t", "ctrl+g", "ctrl+g")
        first, found, stays, longer, chain = driver.worker.adjusted[:5]
        assert (first.chain, first.auto, found.auto, stays.auto) == (4, False, True, False)
        assert longer.chain == stays.chain + 1 == chain.chain + 1
        meter = driver.line_with("tau")
        kinds = [sum(r.accepted for r in rounds[:4]), sum(r.rejected is not None for r in rounds[:4])]
        assert f"{kinds[0]} of {sum(kinds)} tested" in meter
        assert f"chain {chain.chain}" in meter and "T 0.7" in meter and "tok/s" in meter and "1 " in meter
        await driver.pilot.press("f4")
        await driver.until(lambda: isinstance(driver.app.screen, Inspector))
        await driver.pilot.press("left", "home")
        assert any("round 1 of 4" in line for line in driver.lines())
        await driver.pilot.press("t")
        await driver.until(lambda: isinstance(driver.app.screen, Trace))
        await driver.pilot.press("escape", "escape")
        await driver.emit(*rounds[4:], finished(rounds))
        await typed(driver, "/slow 2")
        assert "SLOW 2 rounds/s" in driver.line_with("T 0.7")
        await typed(driver, "/slow 0")
        await typed(driver, "/race")
        await driver.until(lambda: isinstance(driver.app.screen, RaceScreen))
        for length in (0, 2):
            laps = rounds_of(tokens_of("Run."), chain=length)
            await driver.emit(*laps, finished(laps))
        assert any("identical" in line for line in driver.lines())


async def test_keys_and_their_commands():
    names = {command.name for command in COMMANDS}
    async with running((160, 30)) as driver:
        for binding in driver.app.BINDINGS:
            name = binding.action.partition("(")[0]
            same = {"interrupt": "stop", "page": "top", "edge": "top", "temperature": "temp", "auto": "chain"}
            same["command_palette"] = "help"
            assert same.get(name, name) in names, name
        footer = driver.lines()[-1]
        for what in ("temp", "chain", "marks", "inspect", "sessions", "copy", "again", "new", "quit", "help"):
            assert what in footer, what
        palette = {c.title: c.help for c in driver.app.get_system_commands(driver.app.screen)}
        assert len(palette) == len(COMMANDS) and palette["/inspect"].startswith("F4: ")
        await driver.pilot.press("f1")
        assert isinstance(driver.app.screen, Help)
        await driver.pilot.press("escape")
        await typed(driver, "go")
        await driver.emit(*rounds_of(tokens_of("Some words.")))
        assert "Esc stop" in driver.lines()[-1]
        await typed(driver, "/stop")
        assert "cancel" in driver.worker.calls


async def test_the_prompt(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("from a file")
    async with running() as driver:
        area = driver.app.stage.prompt.area
        area.post_message(events.Paste("line\n" * 30))
        await driver.until(lambda: area.text == "[paste 1: 31 lines]")
        await driver.pilot.press("ctrl+j")
        area.post_message(events.Paste("\u6f22\u5b57\u304b\u306a"))  # as an input method commits
        await driver.until(lambda: "\u304b\u306a" in area.text)
        assert area.cursor_screen_offset.x == area.region.x + 8  # two cells each
        await driver.pilot.press(*["ctrl+j"] * 9)
        assert area.size.height == 8
        await typed(driver, "@not")
        message = driver.worker.said[0].messages[-1].content
        assert message.startswith("line\n" * 30) and "\u6f22\u5b57\u304b\u306a" in message
        await driver.pilot.press("escape")
        await driver.emit(finished(rounds_of(["x"]), "cancelled"))
        area.text = ""
        await driver.pilot.press("slash", "i", "n", "tab")
        assert area.text == "/inspect"
        area.text = ""
        await driver.pilot.press("at", "n", "o", "tab", "enter")
        assert "from a file" in driver.worker.said[-1].messages[-1].content
        await driver.pilot.press("up")
        assert area.text == "@notes.txt"


async def test_sessions_and_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    directory = tmp_path / "chats"
    async with running((100, 24), transcript=Transcript.create(directory)) as driver:
        await typed(driver, "/export")
        assert "no saved conversation" in driver.notice
        driver.app.stage.prompt.area.text = ""
        for word in ("one", "two"):
            await typed(driver, word)
            await driver.emit(*whole_reply(f"To {word}."))
        first = driver.app.record.transcript.path
        await typed(driver, "/export a.md")
        await driver.until(lambda: Path("a.md").exists())
        assert "To two." in Path("a.md").read_text()
        await typed(driver, "/export a.md")
        await driver.until(lambda: "already" in driver.notice)
        driver.app.stage.prompt.area.text = ""
        await typed(driver, "/export")
        await driver.until(lambda: Path(f"{first.stem}.html").exists())
        await typed(driver, "/fork 1")
        await driver.until(lambda: driver.app.record.transcript.path != first)
        await driver.until(lambda: said(driver) == [("one", "To one.")])
        await typed(driver, "three")
        await driver.emit(*whole_reply("To three."))
        assert kept(first) == [("one", "To one."), ("two", "To two.")]
        assert len(list_transcripts(directory)) == 2
        await typed(driver, "/fork 7")
        assert "no 7 messages" in driver.notice
        driver.app.stage.prompt.area.text = ""
        await driver.pilot.press("f2")
        await driver.until(lambda: isinstance(driver.app.screen, Sessions))
        await driver.until(lambda: any("2" in line and "sessions" in line for line in driver.lines()))
        await driver.pilot.press("down", "enter")
        await driver.until(lambda: driver.app.record.transcript.path == first)


async def test_parameters():
    async with running() as driver:
        await typed(driver, "/params")
        await driver.until(lambda: isinstance(driver.app.screen, ParameterPanel))
        await driver.pilot.press("ctrl+u", "0", "full_stop", "5", "down", "ctrl+u", "9", "enter")
        await driver.until(lambda: driver.app.chat.controls.sampling.top_k == 9)
        assert driver.app.chat.controls.sampling.temperature == 0.5
        assert INFO.model in driver.lines()[0]


@pytest.mark.parametrize("size", [(40, 12), (250, 80)])
async def test_reach(size, monkeypatch):
    monkeypatch.setenv("TEXTUAL_ANIMATIONS", "none")
    async with running(size, theme="ansi-dark") as driver:
        await typed(driver, "/theme solarized-light")
        assert driver.app.theme == "solarized-light"
        await typed(driver, "/mouse off")
        assert "the terminal's" in driver.notice
        await typed(driver, "/mouse")
        assert "needs a value" in driver.notice
        await driver.pilot.press("ctrl+c")
        await typed(driver, "go")
        await driver.emit(*whole_reply("Fits."))
        assert "Fits." in "\n".join(driver.lines())


async def test_no_motion(monkeypatch):
    async with running() as driver:
        driver.app.animation_level = "none"
        await typed(driver, "go")
        await driver.emit(*whole_reply("Ok."))
        assert not driver.app.stage.prompt.area.cursor_blink


async def test_copying(monkeypatch):
    copied = []
    monkeypatch.setattr(clipboard, "tools", lambda environ: [])
    async with running((160, 30)) as driver:
        monkeypatch.setattr(driver.app, "copy_to_clipboard", copied.append)
        await typed(driver, "go")
        await driver.emit(*whole_reply(ODD))
        await driver.pilot.press("f6")
        await driver.until(lambda: copied == [ODD])
        assert "sent to the terminal's clipboard" in driver.notice
        for command, text in (("/copy code", "def f():\n\treturn 1"), ("/copy code 1", "x" * 300)):
            await typed(driver, command)
            await driver.until(lambda text=text: copied[-1] == text)
        await typed(driver, "/copy code 3")
        assert "no code block 3" in driver.notice
        await driver.pilot.press("ctrl+c")
        await typed(driver, "/copy all")
        await driver.until(lambda: copied[-1].startswith("## you\n\ngo"))


async def test_code_is_copied_by_a_click_as_it_was_written(monkeypatch):
    copied = []
    async with running((80, 40)) as driver:
        monkeypatch.setattr(driver.app, "copy_to_clipboard", copied.append)
        await typed(driver, "go")
        await driver.emit(*whole_reply(ODD))
        row = next(y for y, line in enumerate(driver.lines()) if "python" in line)
        assert driver.lines()[row].rstrip().endswith("copy")
        await driver.pilot.click(offset=(70, row + 1))
        await driver.pilot.pause()
        assert not copied  # only the row above the code copies
        await driver.pilot.click(offset=(70, row))
        await driver.until(lambda: copied == ["def f():\n\treturn 1"])
        assert driver.notice.startswith("the code, 18 characters")


async def test_what_was_found_stands_out():
    async with running((80, 24)) as driver:
        for word in ("apple", "pear"):
            await typed(driver, f"about {word}")
            await driver.emit(*whole_reply(f"The {word} is a fruit.\n\nIt grows on a {word} tree.\n\n- and so on"))
        found = []
        for _ in range(3):
            await typed(driver, "/find grows on")
            await driver.pilot.pause()
            (part,) = driver.app.query(".-found")
            found.append(str(part.content))
        assert found == [f"It grows on a {word} tree." for word in ("pear", "apple", "pear")]
        assert part.background_colors[1] != driver.app.screen.background_colors[1]
