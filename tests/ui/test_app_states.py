"""What the screen tells: loading, speculation, figures, failures; and what is kept."""

from dataclasses import replace

import pytest
from driving import CONTROLS, running
from fake_worker import INFO, finished, rounds_of, stop_round, tokens_of, whole_reply

from eagle3chat.engine.errors import SettingError, WorkerError
from eagle3chat.engine.events import Failed, Loading, Prefill, Ready
from eagle3chat.engine.requests import PairOptions
from eagle3chat.transcript import Transcript, load
from eagle3chat.ui.app import ChatApp
from eagle3chat.ui.theme import pick_theme
from eagle3chat.ui.widgets.lane import Lane

WORDS = tokens_of("one two three four five six seven eight nine ten")


async def test_the_header_names_the_pair_and_the_context():
    async with running((120, 30)) as driver:
        head = driver.lines()[0]
        assert head.strip().startswith("SmolLM2-135M-Instruct · torch cpu int4 · chatml")
        assert "context 0 / 8192" in head
        await driver.say("go")
        await driver.emit(Prefill(20, 39, 12))
        assert any("reading the prompt: 20 of 39 tokens, 12 of them kept from before" in x for x in driver.lines())
        events = whole_reply("one two three")
        await driver.emit(*events)
        used = events[-2].position + events[-2].emitted
        assert f"context {used} / 8192" in driver.lines()[0]


async def test_speculation_is_always_told():
    async with running((120, 30)) as driver:
        assert "chain 3" in driver.line_with("T 0.8")
        await driver.say("/chain 0")
        assert "chain off" in driver.line_with("T 0.8")
    none = replace(INFO, max_chain=0, draft="", unavailable="the draft is for another target")
    async with running((120, 30), start=[Ready(none)]) as driver:
        assert "chain unavailable: the draft is for another target" in driver.line_with("T 0.8")
        await driver.pilot.press("f9")
        assert "the draft is for another target" in driver.notice
        await driver.say("go")
        assert driver.worker.said[0].controls.chain == 0


async def test_what_the_pair_says_about_itself_is_told():
    told = replace(INFO, checks=("rows are alike",), warnings=("The taps are one off.",))
    async with running((120, 30), start=[Ready(told)]) as driver:
        assert driver.line_with("rows are alike") and driver.line_with("The taps are one off.")
    async with running((120, 30)) as driver:
        assert not any("alike" in line for line in driver.lines())


async def test_a_chain_above_the_maximum_is_told_when_the_pair_opens():
    async with running(controls=replace(CONTROLS, chain=9)) as driver:
        assert "longest chain of this draft is 6" in driver.notice
        assert driver.app.chat.controls.chain == 6


async def test_the_lane_shows_what_was_rejected_and_the_reply_does_not():
    async with running((120, 30)) as driver:
        await driver.say("go")
        await driver.emit(*rounds_of(WORDS, accepted=(1,)))
        row = driver.line_with("→")
        assert "1/3" in row
        assert "✗" in row
        assert "(" in row
        assert driver.app.query_one(".tail").text == "".join(WORDS)


async def test_lane_and_meter_never_change_their_height():
    async with running((120, 30)) as driver:
        heights = set()
        await driver.say("go")
        for event in whole_reply("some words and then more of them"):
            await driver.emit(event)
            heights.add((driver.app.query_one(Lane).size.height, driver.app.stage.conversation.size.height))
        assert len(heights) == 1
    async with running((80, 24)) as driver:
        assert driver.app.query_one(Lane).size.height == 1


async def test_the_meter():
    async with running((120, 30)) as driver:
        await driver.say("go")
        rounds = rounds_of(WORDS, accepted=(3, 0, 1))
        await driver.emit(*rounds)
        await driver.emit(finished(rounds))
        line = driver.line_with("T 0.8")
        assert "tau 2.50 █▁▃▆" in line
        assert "1 ▆ .75  2 ▆ .67  3 ▅ .50" in line
        assert "119 tok/s" in line


@pytest.mark.parametrize("size", [(40, 12), (20, 8), (80, 24), (250, 80)])
async def test_any_size_chats_and_survives_a_resize(size):
    async with running(size) as driver:
        await driver.say("go")
        events = whole_reply("漢字 words and emoji 😀 in a sentence that wraps at most widths there are.")
        await driver.emit(*events[:4])
        await driver.pilot.resize_terminal(size[0] + 7, size[1] + 3)
        await driver.pilot.pause()
        await driver.emit(*events[4:])
        assert "emoji 😀 in" in driver.shown().replace("\n", " ")
        await driver.say("again")
        assert len(driver.worker.said) == 2


async def test_a_failure_of_one_message_gives_it_back():
    async with running() as driver:
        await driver.say("far too long")
        await driver.emit(Failed("The prompt has 9000 tokens and the context holds 8192.", "Shorten it."))
        assert driver.app.chat.phase == "idle"
        assert driver.app.stage.prompt.text == "far too long"
        assert driver.line_with("9000 tokens")
        await driver.say("short")
        assert [m.content for m in driver.worker.said[-1].messages] == ["short"]


async def test_a_dead_worker_keeps_the_partial_reply_and_comes_back():
    async with running() as driver:
        await driver.say("go")
        rounds = rounds_of(WORDS)[:2]
        await driver.emit(*rounds, Failed("The worker was killed.", "Look at the log.", fatal=True))
        assert driver.app.chat.phase == "down"
        assert "The worker was killed. Look at the log. F5" in driver.line_with("killed")
        assert "F5" in driver.lines()[0]
        partial = "".join(r.text for r in rounds)
        assert driver.shown() == partial
        await driver.say("next")
        assert "waits for the worker" in driver.notice
        await driver.emit(Failed("The worker was killed.", "", fatal=True))
        await driver.pilot.press("f5")
        await driver.until(lambda: len(driver.worker.said) == 2)
        assert driver.worker.calls.count("restart") == 1
        assert [m.content for m in driver.worker.said[1].messages] == ["go", partial, "next"]
        assert driver.worker.said[1].messages[1].token_ids == tuple(t.id for r in rounds for t in r.tokens)


async def test_restart_in_the_middle_of_a_reply():
    async with running() as driver:
        await driver.say("go")
        await driver.emit(*rounds_of(WORDS)[:2])
        await driver.say("/restart")
        await driver.until(lambda: driver.app.chat.phase == "idle")
        assert len(driver.app.chat.messages) == 2
        await driver.emit(*rounds_of(WORDS)[:1])  # a late round of the old worker
        assert len(driver.app.chat.messages) == 2


async def test_a_pair_that_does_not_open():
    async with running(start=[Loading("reading", None), Failed("/m: no bundle.json.", "Use --model.")]) as driver:
        assert driver.app.chat.phase == "down"
        assert driver.line_with("no bundle.json")


async def test_a_worker_that_cannot_be_started_or_spoken_to():
    async with running() as driver:

        def refuse(*args: object) -> None:
            raise WorkerError("The decode worker is not running.", "Restart it.")

        driver.worker.say = refuse
        await driver.say("go")
        assert driver.app.chat.phase == "down"
        assert driver.app.stage.prompt.text == "go"
        driver.worker.restart = refuse
        await driver.pilot.press("f5")
        await driver.until(lambda: driver.app.chat.phase == "down" and len(driver.app.query(".note.-error")) == 2)


async def test_the_transcript_holds_the_chat_and_it_can_go_on(tmp_path):
    async with running(transcript=Transcript.create(tmp_path)) as driver:
        await driver.say("go")
        path = driver.app.record.transcript.path
        assert "go" in path.read_text()
        await driver.emit(*whole_reply("Here is *one*.\n\nAnd two."))
        driver.app.record.close()
    transcript, past = Transcript.resume(path)
    async with running((80, 16), transcript=transcript, past=past) as driver:
        assert "Here is one." in driver.shown()
        assert driver.app.stage.conversation.at_end
        assert driver.line_with("stopped at <|im_end|>")
        await driver.say("more")
        said = driver.worker.said[0].messages
        assert [m.content for m in said] == ["go", "Here is *one*.\n\nAnd two.", "more"]
        assert said[1].token_ids
        driver.app.record.close()
    assert load(path).user_turns == 2


async def test_a_transcript_that_breaks_is_told_once_and_the_chat_goes_on(tmp_path):
    transcript = Transcript.create(tmp_path / "gone" / "deeper")
    (tmp_path / "gone").write_text("a file where the directory should be")
    async with running((160, 30), transcript=transcript) as driver:
        await driver.say("go")
        assert "can no longer be written" in driver.notice
        driver.app.stage.keys.tell("")
        rounds = rounds_of(WORDS)
        await driver.emit(*rounds, stop_round(rounds), finished(rounds))
        assert driver.notice == ""
        assert driver.app.chat.messages[-1].content == "".join(WORDS)


async def test_without_colour_kinds_still_differ(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    async with running() as driver:
        assert driver.app.theme == "ansi-dark"
        await driver.say("go")
        await driver.emit(*rounds_of(WORDS)[:2])
        tail = driver.app.query_one(".tail")
        looks = {
            (s.underline, s.bold, s.italic)
            for s in (tail._style(k) for k in ("accepted", "correction", "bonus", "plain"))
        }
        assert len(looks) == 4


async def test_only_one_timer_and_only_while_a_reply_streams():
    async with running() as driver:
        timer = driver.app._timer
        assert not timer._active.is_set()
        await driver.say("go")
        assert timer._active.is_set()
        assert not driver.app.stage.prompt.area.cursor_blink
        await driver.emit(*whole_reply("ok"))
        assert not timer._active.is_set()


@pytest.mark.parametrize(
    ("setting", "words"), [({"theme": "mauve"}, "no theme 'mauve'"), ({"marks": "bold"}, "'bold'")]
)
def test_settings_that_cannot_be(setting, words):
    with pytest.raises(SettingError, match=words):
        ChatApp(PairOptions(), CONTROLS, **setting)


def test_the_theme_follows_the_terminal():
    assert pick_theme("auto", {}, no_color=False) == "eagle-dark"
    assert pick_theme("auto", {"COLORFGBG": "0;15"}, no_color=False) == "eagle-light"
    assert pick_theme("auto", {"COLORFGBG": "0;15"}, no_color=True) == "ansi-light"
    assert pick_theme("light", {}, no_color=True) == "eagle-light"
    assert pick_theme("nord", {}, no_color=False) == "nord"


@pytest.mark.parametrize(
    "theme", ["eagle-dark", "eagle-light", "nord", "textual-light", "ansi-light", "solarized-light"]
)
async def test_every_theme_has_colours_for_the_kinds(theme):
    async with running(theme=theme) as driver:
        await driver.say("go")
        await driver.emit(*rounds_of(WORDS)[:3])
        tail = driver.app.query_one(".tail")
        assert len({str(tail._style(kind).color) for kind in ("accepted", "correction", "bonus", "plain")}) == 4
