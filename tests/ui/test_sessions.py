"""The list of saved conversations: filter, open, rename, fork, delete, undo, each by its keys."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from driving import Driver, running
from fake_worker import INFO, finished, rounds_of, tokens_of, whole_reply

from eagle3chat.engine.events import Info
from eagle3chat.engine.requests import Controls
from eagle3chat.engine.sampling import Sampling
from eagle3chat.transcript import Transcript, load
from eagle3chat.transcript_codec import Reply, Setup
from eagle3chat.transcript_index import END, MARK, Found
from eagle3chat.transcript_list import Summary
from eagle3chat.transcript_store import TRASH
from eagle3chat.ui.screens.sessions import Sessions
from eagle3chat.ui.session_line import age_of, excerpt_line, session_line

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)


def saved(directory: Path, said: str, answer: str, age: int = 0, info: Info = INFO) -> Path:
    """A conversation on disk, written so many seconds after another."""
    transcript = Transcript.create(directory)
    transcript.opened(info, Controls(2, Sampling(temperature=0.5, seed=9)))
    transcript.system("Be brief.")
    transcript.setup(Setup(77))
    transcript.user(said)
    rounds = rounds_of(tokens_of(answer))
    for round_ in rounds:
        transcript.round(round_)
    transcript.reply(finished(rounds))
    transcript.close()
    os.utime(transcript.path, (1_700_000_000 - age, 1_700_000_000 - age))
    return transcript.path


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """The last one first."""
    texts = (("apples", "red and round"), ("pears \x1b[2J [b]", "green as grass"), ("plums", "blue and [not] round"))
    return [saved(tmp_path, said, answer, age) for age, (said, answer) in enumerate(texts)]


async def shown(driver: Driver, count: int) -> Sessions:
    """The screen, once it lists so many."""
    await driver.until(lambda: isinstance(driver.app.screen, Sessions))
    screen = driver.app.screen
    assert isinstance(screen, Sessions)
    await driver.until(lambda: len(screen._list) == count and "looking" not in "".join(driver.lines()))
    await driver.pilot.pause()
    return screen


def titles(screen: Sessions) -> list[str]:
    return [found.summary.title for found in screen._list._rows]


async def test_filter_and_open(paths, tmp_path):
    async with running(transcript=Transcript.create(tmp_path)) as driver:
        await driver.pilot.press("f2")
        screen = await shown(driver, 3)
        assert titles(screen) == ["apples", "pears \x1b[2J [b]", "plums"]
        assert not set("".join(driver.lines())) & {"\x1b"}
        await driver.pilot.press(*"round")
        await shown(driver, 2)
        assert "red and round" in driver.line_with("red and")
        await driver.pilot.press("down", "enter")
        await driver.until(lambda: bool(driver.app.chat.exchanges))
        app = driver.app
        assert [exchange.said for exchange in app.chat.exchanges] == ["plums"]
        assert app.chat.controls == Controls(2, Sampling(temperature=0.5, seed=9))
        assert (app.chat.system, app.chat.max_new_tokens) == ("Be brief.", 77)
        assert "blue and [not] round" in driver.shown()
        await driver.say("and now?")
        assert [m.content for m in driver.worker.said[0].messages][:2] == ["Be brief.", "plums"]
        assert driver.worker.said[0].max_new_tokens == 77
        await driver.emit(*whole_reply("more"))
        app.record.close()
    assert load(paths[2]).user_turns == 2
    assert load(paths[2]).skipped == 0
    assert len(list(tmp_path.glob("*.jsonl"))) == 3  # the empty one that was left is not there


async def test_what_is_looked_at_is_not_changed(paths, tmp_path):
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in paths]
    async with running(transcript=Transcript.create(tmp_path)) as driver:
        for place in range(3):
            await driver.pilot.press("f2")
            await shown(driver, 3)
            await driver.pilot.press(*["down"] * place, "enter")
            await driver.until(lambda: driver.app.record.transcript.path == paths[place])  # noqa: B023
        driver.app.record.close()
    assert [(path.read_bytes(), path.stat().st_mtime_ns) for path in paths] == before


async def test_a_conversation_of_another_model_goes_on_as_text(tmp_path):
    path = saved(tmp_path, "apples", "red", info=replace(INFO, model="Other"))
    async with running(transcript=Transcript.create(tmp_path)) as driver:
        await driver.pilot.press("f2")
        await shown(driver, 1)
        await driver.pilot.press("enter")
        await driver.until(lambda: bool(driver.app.chat.exchanges))
        assert driver.line_with("Other wrote these replies")
        await driver.say("more")
        assert [m.token_ids for m in driver.worker.said[0].messages[1:3]] == [None, None]
        await driver.emit(*whole_reply("more"))
        driver.app.record.close()
    past = load(path)
    pairs = [turn.pair.model for turn in past.turns if isinstance(turn, Reply)]
    assert pairs == ["Other", INFO.model]


async def test_opening_by_command_with_words(paths, tmp_path):
    async with running(transcript=Transcript.create(tmp_path)) as driver:
        await driver.say("/sessions grass")
        screen = await shown(driver, 1)
        assert titles(screen) == ["pears \x1b[2J [b]"]
        await driver.pilot.press("escape")
        assert not isinstance(driver.app.screen, Sessions)
        assert not driver.app.chat.exchanges


async def test_rename(paths, tmp_path):
    async with running(transcript=Transcript.create(tmp_path)) as driver:
        await driver.pilot.press("f2")
        screen = await shown(driver, 3)
        await driver.pilot.press("ctrl+r", *" and more", "escape", "escape")
        assert load(paths[0]).title == "" and not isinstance(driver.app.screen, Sessions)
        await driver.pilot.press("f2")
        screen = await shown(driver, 3)
        await driver.pilot.press("down", "down", "ctrl+r", *" and more", "enter")
        await driver.until(lambda: titles(screen)[-1:] == ["plums and more"])
        assert screen._list.place == 2
        assert load(paths[2]).title == "plums and more"


async def test_fork_delete_and_undo(paths, tmp_path):
    async with running(transcript=Transcript.create(tmp_path)) as driver:
        await driver.pilot.press("f2")
        screen = await shown(driver, 3)
        await driver.pilot.press("ctrl+z")
        assert driver.line_with("nothing was deleted")
        await driver.pilot.press("down", "ctrl+n")
        await shown(driver, 4)
        assert titles(screen)[0] == titles(screen)[2] == "pears \x1b[2J [b]"
        assert screen._list.place == 0
        await driver.pilot.press("ctrl+t")
        await shown(driver, 3)
        assert driver.line_with("deleted: pears")
        await driver.pilot.press("down", "ctrl+t")
        await shown(driver, 2)
        assert titles(screen) == ["apples", "plums"] and len(list((tmp_path / TRASH).iterdir())) == 2
        assert screen._list.place == 1
        await driver.pilot.press("ctrl+z")
        await shown(driver, 3)
        assert paths[1].exists()
        await driver.pilot.press("ctrl+z")
        await shown(driver, 4)


async def test_the_one_on_screen_is_named_and_stays(paths, tmp_path):
    async with running(transcript=Transcript.create(tmp_path)) as driver:
        await driver.say("/title too early")
        assert "nothing to name" in driver.notice
        await driver.say("hello")
        await driver.emit(*whole_reply("there"))
        await driver.say("/title a first name")
        await driver.pilot.press("f2")
        screen = await shown(driver, 4)
        assert titles(screen)[0] == "a first name" and driver.line_with("on screen  a first name")
        await driver.pilot.press("ctrl+t")
        assert driver.line_with("This one is on screen")
        await driver.pilot.press("ctrl+r", "ctrl+u", *"new", "enter")
        await driver.until(lambda: titles(screen)[:1] == ["new"])
        await driver.pilot.press("ctrl+n")
        await shown(driver, 5)
        await driver.pilot.press("enter")
        await driver.until(lambda: not isinstance(driver.app.screen, Sessions))
        await driver.until(lambda: driver.app.record.transcript.path not in paths)
        driver.app.record.close()


async def test_not_while_a_reply_streams(paths, tmp_path):
    async with running(transcript=Transcript.create(tmp_path)) as driver:
        await driver.say("hello")
        await driver.emit(*whole_reply("one two three four five six")[:3])
        await driver.pilot.press("f2")
        await shown(driver, 4)
        await driver.pilot.press("down", "enter")
        await driver.until(lambda: "A reply is streaming" in driver.notice)
        assert [exchange.said for exchange in driver.app.chat.exchanges] == ["hello"]
        driver.app.record.close()


async def test_open_elsewhere(paths, tmp_path):
    held, _ = Transcript.resume(paths[0])
    async with running(transcript=Transcript.create(tmp_path)) as driver:
        await driver.pilot.press("f2")
        await shown(driver, 3)
        await driver.pilot.press("ctrl+t")
        assert driver.line_with("open in another")
        await driver.pilot.press("enter")
        await driver.until(lambda: "open in another" in driver.notice)
        assert not driver.app.chat.exchanges
    held.close()


async def test_without_a_transcript_nothing_is_written(paths, tmp_path, monkeypatch):
    monkeypatch.setattr("eagle3chat.ui.session_actions.default_directory", lambda: tmp_path)
    before = [path.read_bytes() for path in paths]
    async with running() as driver:
        await driver.pilot.press("f2")
        await shown(driver, 3)
        await driver.pilot.press("enter")
        await driver.until(lambda: bool(driver.app.chat.exchanges))
        await driver.say("more")
        await driver.emit(*whole_reply("more"))
    assert [path.read_bytes() for path in paths] == before


async def test_mouse_and_pages(tmp_path):
    for age in range(30):
        saved(tmp_path, f"number {age}", "x", age)
    async with running(transcript=Transcript.create(tmp_path)) as driver:
        await driver.pilot.press("f2")
        screen = await shown(driver, 30)
        await driver.pilot.press("pagedown", "pagedown")
        assert screen._list.place > 12 and driver.line_with(f"number {screen._list.place}")
        await driver.pilot.press("ctrl+end")
        assert screen._list.place == 29 and driver.line_with("number 29")
        await driver.pilot.press("ctrl+home")
        await driver.pilot.click("#sessions-list", offset=(5, 3))
        assert screen._list.place == 3
        await driver.pilot.click("#sessions-list", offset=(5, 4), times=2)
        await driver.until(lambda: bool(driver.app.chat.exchanges))
        assert driver.app.chat.exchanges[0].said == "number 4"
        driver.app.record.close()


def test_rows_fit_and_say_when() -> None:
    summary = Summary("a", Path("a"), "", "2026-01-02T11:30:00+00:00", "Some-Model", "title " * 20, 3, 12345)
    for width in (20, 36, 50, 70, 108):
        line = session_line(Found(summary), width, NOW, "a")
        assert line.cell_length == width
        other = session_line(Found(replace(summary, model="日本" * 20, title="日本", size=5, id="b")), width, NOW, "a")
        assert other.cell_length == width
        assert width == 20 or other.plain.endswith("30 min ago")
        assert ("Some-Model" in line.plain) == (width >= 70)
        assert ("30 min ago" in line.plain) == (width >= 36)
    assert "Some-Model" in line.plain and "3 turns" in line.plain and "12 KiB" in line.plain
    ages = ("2026-01-02T11:59:50+00:00", "2026-01-02T09:00:00+00:00", "2025-12-01T09:00:00", "nonsense")
    assert [age_of(modified, NOW) for modified in ages] == ["now", "3 h ago", "2025-12-01", ""]


def test_an_excerpt_is_text() -> None:
    summary = Summary("a", Path("a"), "", "", "", "t", 1, 1)
    line = excerpt_line(Found(summary, f"[b] {MARK}hit{END} \x1b[2J {MARK}two{END}"))
    assert line.plain == "[b] hit ␛[2J two"
    assert excerpt_line(Found(summary)).plain == excerpt_line(None).plain == ""
