"""The prompt: large pastes, history across runs, completion, files, the editor, wide characters."""

import os
import stat
import sys

import pytest
from driving import running
from fake_worker import finished, rounds_of, tokens_of, whole_reply
from textual import events

from eagle3chat.engine.errors import SettingError
from eagle3chat.ui.attach import attached, paths
from eagle3chat.ui.completion import choice
from eagle3chat.ui.editor import command_of, edited
from eagle3chat.ui.history import Entry, History
from eagle3chat.ui.pastes import Pastes

LONG = "\n".join(f"line {i}" for i in range(240))


async def paste(driver, text):
    driver.app.stage.prompt.area.post_message(events.Paste(text))
    await driver.pilot.pause()


async def test_large_pastes_are_placeholders_until_they_are_sent():
    async with running() as driver:
        area = driver.app.stage.prompt.area
        await driver.pilot.press(*"a ")
        await paste(driver, LONG)
        await driver.pilot.press(*" b ")
        await paste(driver, "x" * 3000)
        await paste(driver, "short\npaste")
        assert area.text == "a [paste 1: 240 lines] b [paste 2: 3,000 characters]short\npaste"
        await driver.pilot.press("enter")
        await driver.until(lambda: bool(driver.worker.said))
        assert driver.worker.said[0].messages[-1].content == f"a {LONG} b {'x' * 3000}short\npaste"
        assert "more" in str(driver.app.query_one(".said").content)


async def test_a_paste_of_a_megabyte_costs_the_prompt_nothing():
    async with running() as driver:
        text = "0123456789abcde\n" * 65536
        await paste(driver, text)
        assert driver.app.stage.prompt.text == "[paste 1: 65537 lines]"
        await driver.pilot.press("enter")
        await driver.until(lambda: bool(driver.worker.said))
        assert driver.worker.said[0].messages[-1].content == text


def test_an_edited_placeholder_is_text_and_so_is_one_that_was_pasted():
    pastes = Pastes()
    trick = "[paste 2: 21 lines]" + "\n" * 20
    first, second = pastes.shorten(trick), pastes.shorten("b\n" * 20)
    assert (first, second) == ("[paste 1: 21 lines]", "[paste 2: 21 lines]")
    assert pastes.expand(first) == trick
    assert pastes.expand("[paste 2: 20 lines] [paste 9: 1 lines]") == "[paste 2: 20 lines] [paste 9: 1 lines]"


async def test_an_unanswered_message_comes_back_as_it_was_drafted():
    async with running() as driver:
        await paste(driver, LONG)
        await driver.pilot.press("enter")
        await driver.until(lambda: bool(driver.worker.said))
        await driver.emit(finished([], "cancelled"))
        assert driver.app.stage.prompt.text == "[paste 1: 240 lines]"
        await driver.pilot.press("enter")
        await driver.until(lambda: len(driver.worker.said) == 2)
        assert driver.worker.said[1].messages[-1].content == LONG


async def test_the_history_lasts_and_is_nobody_elses(tmp_path):
    path = tmp_path / "state" / "history.jsonl"
    async with running(history=History(path)) as driver:
        await driver.say("first")
        await driver.emit(*whole_reply("ok"))
        await paste(driver, LONG)
        await driver.pilot.press("x", "ctrl+c")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    with path.open("ab") as file:
        file.write(b"{torn")
    async with running(history=History(path)) as driver:
        await paste(driver, "other\n" * 30)
        await driver.pilot.press("ctrl+c", "up", "up")
        assert driver.app.stage.prompt.text == "[paste 2: 240 lines]x"
        await driver.pilot.press("up")
        assert driver.app.stage.prompt.text == "first"
        await driver.pilot.press("down", "enter")
        await driver.until(lambda: bool(driver.worker.said))
        assert driver.worker.said[0].messages[-1].content == LONG + "x"


def test_the_history_is_cut_and_needs_no_directory(tmp_path, monkeypatch):
    monkeypatch.setattr("eagle3chat.ui.history.KEPT", 5)
    path = tmp_path / "history.jsonl"
    history = History(path)
    for i in range(20):
        history.add(Entry(f"entry {i}"))
    assert [e.text for e in History(path).entries] == [f"entry {i}" for i in range(15, 20)]
    assert len(path.read_text().splitlines()) == 5
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    blocked = tmp_path / "file"
    blocked.write_text("")
    History(blocked / "history.jsonl").add(Entry("kept in this run"))


async def test_tab_completes_commands():
    async with running() as driver:
        area = driver.app.stage.prompt.area
        await driver.pilot.press("slash", "i", "tab")
        assert area.text == "/inspect"
        area.text = ""
        await driver.pilot.press("slash", "t", "o", "tab")
        assert area.text == "/top"
        await driver.pilot.press("tab")
        assert area.text == "/topp "
        await driver.pilot.press("tab")
        assert area.text == "/topk "
        assert area.has_focus


async def test_tab_completes_paths_and_files_go_with_the_message(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.md").write_text("with ```` a fence\n")
    (tmp_path / "sub dir").mkdir()
    (tmp_path / "sub dir" / "b.txt").write_text("bee")
    async with running() as driver:
        area = driver.app.stage.prompt.area
        await driver.pilot.press(*"see @", "n", "tab")
        assert area.text == "see @notes.md"
        await driver.pilot.press(*" and @")
        assert '@notes.md  @"sub dir/' in driver.lines()[-1]
        await driver.pilot.press("s", "tab", "tab")
        assert area.text == 'see @notes.md and @"sub dir/b.txt"'
        await driver.pilot.press("enter")
        await driver.until(lambda: bool(driver.worker.said))
        said = driver.worker.said[0].messages[-1].content
        fenced = "notes.md:\n`````\nwith ```` a fence\n`````\n\nsub dir/b.txt:\n```\nbee\n```"
        assert said == f'see @notes.md and @"sub dir/b.txt"\n\n{fenced}'


def test_what_names_no_file_stays_and_what_is_no_text_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert attached("mail me@x.org or @nobody, @") == "mail me@x.org or @nobody, @"
    (tmp_path / "a.bin").write_bytes(b"\xff\x00")
    with pytest.raises(SettingError, match="not text"):
        attached("@a.bin")
    (tmp_path / "a.bin").write_bytes(b"a\x00b")
    with pytest.raises(SettingError, match="not text"):
        attached("look at @a.bin.")
    (tmp_path / "big").write_bytes(b"x" * ((1 << 20) + 1))
    with pytest.raises(SettingError, match="too large"):
        attached("@big")
    os.mkfifo("pipe")
    odd = "@pipe @. @/dev/zero @/proc"
    assert attached(odd) == odd, "nothing is waited for or read without end"
    assert paths("a") == ["a.bin"]
    assert paths("none/") == []
    assert choice("no path") is None


async def test_a_file_that_is_refused_leaves_the_draft(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.bin").write_bytes(b"\xff")
    async with running() as driver:
        await driver.say("@a.bin please")
        assert "not text" in driver.notice
        assert driver.app.stage.prompt.text == "@a.bin please"
        assert not driver.worker.said


async def test_typing_means_staying():
    async with running() as driver:
        await driver.pilot.press("ctrl+c", "x", "ctrl+c", "ctrl+c")
        assert driver.app.is_running
        assert "again leaves" in driver.notice


async def test_a_stop_never_sends_what_waits():
    async with running() as driver:
        await driver.say("one")
        await driver.say("two")
        await driver.pilot.press(*"draft", "escape")
        rounds = rounds_of(tokens_of("a b c"))
        await driver.emit(*rounds, finished(rounds, "cancelled"))
        assert len(driver.worker.said) == 1
        assert driver.app.stage.prompt.text == "two\n\ndraft"


async def test_wide_characters():
    async with running((40, 16)) as driver:
        area = driver.app.stage.prompt.area
        text = "漢字かな交じり文をたくさん書いても行は正しく折り返される 👍🏽 fin"
        await driver.pilot.press(*text[:28])
        await paste(driver, text[28:])  # an input method sends what it composed at once
        assert area.text == text
        assert driver.app.stage.prompt.size.height > 1
        await driver.pilot.press("enter")
        await driver.until(lambda: bool(driver.worker.said))
        assert driver.worker.said[0].messages[-1].content == text


async def test_the_editor_gives_the_draft_back(tmp_path):
    script = tmp_path / "edit.py"
    script.write_text("import sys; p = sys.argv[1]; t = open(p).read(); open(p, 'w').write(t + ' and more\\n')")
    environ = {"EDITOR": f"{sys.executable} {script}"}
    assert await edited("draft", environ) == "draft and more"
    with pytest.raises(SettingError, match="cannot be started"):
        await edited("draft", {"VISUAL": "/nowhere/editor"})
    with pytest.raises(SettingError, match="exit code 1"):
        await edited("draft", {"EDITOR": f'{sys.executable} -c "raise SystemExit(1)"'})
    with pytest.raises(SettingError, match="no command"):
        command_of({"EDITOR": '"open'})
    assert command_of({}) == ["vi"]


async def test_an_editor_without_a_terminal_is_one_quiet_line():
    async with running() as driver:
        await driver.pilot.press("ctrl+o")
        await driver.until(lambda: bool(driver.notice))
        assert "needs a terminal" in driver.notice
