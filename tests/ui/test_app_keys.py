"""Keys, commands and the prompt, on a fake worker."""

from dataclasses import replace

import pytest
from driving import running
from fake_worker import INFO, finished, rounds_of, tokens_of, whole_reply
from textual import events

from eagle3chat.engine.events import Loading, Ready
from eagle3chat.ui.screens.help import Help

WORDS = tokens_of("one two three four five six seven eight nine ten")


async def test_enter_sends_behind_the_keys_before_it():
    async with running() as driver:
        await driver.pilot.press(*"hi you", "enter")
        await driver.until(lambda: bool(driver.worker.said))
        assert driver.worker.said[0].messages[-1].content == "hi you"
        assert driver.app.stage.prompt.text == ""


@pytest.mark.parametrize("key", ["shift+enter", "ctrl+j", "shift+\r"])
async def test_keys_that_make_a_line(key):
    async with running() as driver:
        await driver.pilot.press("a", key, "b")
        await driver.pilot.pause()
        assert driver.app.stage.prompt.text == "a\nb"
        assert not driver.worker.said


async def test_backslash_enter_makes_a_line():
    async with running() as driver:
        await driver.pilot.press("a", "backslash", "enter", "b")
        await driver.pilot.pause()
        assert driver.app.stage.prompt.text == "a\nb"
        await driver.pilot.press("enter")
        await driver.until(lambda: bool(driver.worker.said))
        assert driver.worker.said[0].messages[-1].content == "a\nb"


async def test_a_paste_never_sends_and_is_cleaned():
    async with running() as driver:
        area = driver.app.stage.prompt.area
        area.post_message(events.Paste("one\r\ntwo\rthree\x1b[2J\n"))
        await driver.pilot.pause()
        assert area.text == "one\ntwo\nthree[2J\n"
        assert not driver.worker.said


async def test_the_prompt_grows_to_eight_rows():
    async with running() as driver:
        for count, rows in ((1, 1), (5, 5), (20, 8)):
            driver.app.stage.prompt.area.text = "\n".join("x" * count)
            await driver.pilot.pause()
            assert driver.app.stage.prompt.size.height == rows


async def test_history():
    async with running() as driver:
        for text in ("first", "second"):
            await driver.say(text)
            await driver.emit(*whole_reply("ok"))
        await driver.pilot.press(*"draft", "up", "up")
        assert driver.app.stage.prompt.text == "first"
        await driver.pilot.press("down", "down")
        assert driver.app.stage.prompt.text == "draft"


async def test_controls_act_while_a_reply_streams():
    async with running() as driver:
        await driver.say("go")
        await driver.emit(*rounds_of(WORDS)[:1])
        await driver.pilot.press("f9", "ctrl+t", "ctrl+g", "ctrl+g")
        sent = driver.worker.adjusted
        assert [c.chain for c in sent] == [4, 4, 4, 4]
        assert [c.sampling.temperature for c in sent] == [0.8, 0.9, 0.8, 0.7]
        assert "chain 4  T 0.7" in driver.line_with("chain 4")
        await driver.say("/temp 1.2")
        assert driver.worker.adjusted[-1].sampling.temperature == 1.2


async def test_controls_before_a_reply_come_with_it():
    async with running() as driver:
        await driver.pilot.press("f8", "f8", "f8")
        assert "chain off" in driver.line_with("chain off")
        assert not driver.worker.adjusted
        await driver.pilot.press("f8")
        assert "off already" in driver.notice
        await driver.say("go")
        assert driver.worker.said[0].controls.chain == 0


async def test_temperature_stops_at_zero():
    async with running() as driver:
        await driver.say("/temp 0.05")
        await driver.pilot.press("ctrl+g", "ctrl+g")
        assert driver.app.chat.controls.sampling.temperature == 0.0
        assert "most probable" in driver.notice


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("/chain 7", "Use 0 to 6."),
        ("/chain -2", "does not exist"),
        ("/temp x", "takes a number"),
        ("/hop", "no command"),
    ],
)
async def test_a_wrong_command_is_one_quiet_line_and_stays_to_be_mended(text, words):
    async with running() as driver:
        await driver.say(text)
        assert words in driver.notice
        assert words.split()[0] in driver.lines()[-1]
        assert driver.app.stage.prompt.text == text
        assert not driver.worker.said


async def test_ctrl_c_copies_then_stops_then_clears_then_leaves():
    async with running() as driver:
        await driver.say("go")
        await driver.emit(*rounds_of(WORDS)[:1])
        area = driver.app.stage.prompt.area
        area.text = "draft"
        area.select_all()
        await driver.pilot.press("ctrl+c")
        assert driver.app.clipboard == "draft"
        assert "cancel" not in driver.worker.calls
        area.move_cursor((0, 0))
        await driver.pilot.press("ctrl+c")
        assert "cancel" in driver.worker.calls
        await driver.emit(finished(rounds_of(WORDS)[:1], "cancelled"))
        await driver.pilot.press("ctrl+c")
        assert area.text == ""
        await driver.pilot.press("up")
        assert area.text == "draft"
        await driver.pilot.press("ctrl+c", "ctrl+c")
        assert driver.app.is_running
        assert "again leaves" in driver.notice
        await driver.pilot.press("ctrl+c")
    assert driver.app.return_code == 0


async def test_page_keys_scroll_the_conversation_from_the_prompt():
    async with running((80, 16)) as driver:
        await driver.say("go")
        await driver.emit(*whole_reply("line one\n\n" * 30))
        await driver.pilot.pause()
        conversation = driver.app.stage.conversation
        bottom = conversation.scroll_y
        assert bottom == conversation.max_scroll_y > 0
        await driver.pilot.press("pageup")
        await driver.pilot.pause()
        assert conversation.scroll_y < bottom
        assert "more below" in driver.lines()[-1]
        reached = conversation.scroll_y
        await driver.say("more")
        await driver.emit(*rounds_of(WORDS))
        await driver.pilot.press("ctrl+home")
        await driver.pilot.pause()
        assert conversation.scroll_y == 0
        await driver.emit(*rounds_of(WORDS))
        assert conversation.scroll_y == 0
        await driver.pilot.press("ctrl+end")
        await driver.pilot.pause()
        assert conversation.scroll_y == conversation.max_scroll_y > reached
        assert "more below" not in driver.lines()[-1]


async def test_messages_wait_while_a_reply_streams():
    async with running() as driver:
        await driver.say("one")
        await driver.say("two")
        assert "waits for the worker: two" in driver.notice
        assert len(driver.worker.said) == 1
        await driver.emit(*whole_reply("ok"))
        assert [s.messages[-1].content for s in driver.worker.said] == ["one", "two"]


async def test_a_stopped_reply_gives_waiting_messages_back():
    async with running() as driver:
        await driver.say("one")
        await driver.say("two")
        await driver.pilot.press("escape")
        rounds = rounds_of(WORDS)
        await driver.emit(*rounds, finished(rounds, "cancelled"))
        assert driver.app.stage.prompt.text == "two"
        assert len(driver.worker.said) == 1


async def test_a_new_conversation():
    async with running() as driver:
        await driver.say("one")
        await driver.say("/new")
        assert "Esc stops it" in driver.notice
        await driver.emit(*whole_reply("ok"))
        driver.app.stage.prompt.area.text = ""
        await driver.say("/new")
        await driver.pilot.pause()
        assert not driver.app.query(".said")
        await driver.say("two")
        say = driver.worker.said[-1]
        assert [m.content for m in say.messages] == ["two"]
        assert say.controls.sampling.seed != 7
        assert f"seed {say.controls.sampling.seed}" in driver.line_with("seed")


async def test_a_seed_that_was_set_outlives_the_conversation():
    async with running() as driver:
        await driver.say("/seed 21")
        await driver.say("/new")
        await driver.say("one")
        assert driver.worker.said[-1].controls.sampling.seed == 21


async def test_a_penalty_is_set_and_shown():
    async with running(size=(140, 30)) as driver:
        await driver.say("/penalty repetition 1.15")
        assert "repetition 1.15" in driver.line_with("seed")
        await driver.say("one")
        assert driver.worker.said[-1].controls.sampling.repetition == 1.15


async def test_the_system_message():
    async with running() as driver:
        await driver.say("/system Be brief.")
        await driver.say("go")
        assert [m.content for m in driver.worker.said[0].messages] == ["Be brief.", "go"]


async def test_marks_cycle():
    async with running() as driver:
        for mode in ("subtle", "off", "full"):
            await driver.pilot.press("f3")
            assert driver.app.stage.has_class(f"-marks-{mode}")
            assert driver.notice == f"marks {mode}"


async def test_help_takes_the_keys_and_gives_them_back():
    async with running() as driver:
        await driver.say("/help")
        await driver.until(lambda: isinstance(driver.app.screen, Help))
        await driver.pilot.press("f8")
        assert driver.app.chat.controls.chain == 3
        assert any("accepted / judged" in line for line in driver.lines())
        await driver.pilot.press("escape")
        await driver.pilot.pause()
        assert not isinstance(driver.app.screen, Help)
        await driver.pilot.press("f8")
        assert driver.app.chat.controls.chain == 2


async def test_hints_for_commands():
    async with running() as driver:
        await driver.pilot.press("slash", "t")
        await driver.pilot.pause()
        assert "/temp  /topp  /topk" in driver.lines()[-1]


async def test_every_command_is_in_the_palette():
    async with running() as driver:
        titles = [command.title for command in driver.app.get_system_commands(driver.app.screen)]
        assert {"/chain N|auto", "/temp X", "/new", "/restart", "/quit", "/theme [NAME]"} <= set(titles)
        driver.app._pick("temp", "X")
        assert driver.app.stage.prompt.text == "/temp "


async def test_typed_while_loading_is_sent_when_ready():
    async with running(start=[Loading("reading weights", 0.43)]) as driver:
        assert "reading weights" in driver.lines()[0]
        assert driver.lines()[0].endswith("43 %")
        await driver.say("early")
        assert "waits for the worker: early" in driver.notice
        assert not driver.worker.said
        await driver.emit(Ready(INFO))
        assert driver.worker.said[0].messages[-1].content == "early"


async def test_the_chain_finds_its_length_until_it_is_set():
    async with running() as driver:
        await driver.say("go")
        await driver.pilot.press("f7")
        assert driver.app.chat.controls.auto
        await driver.emit(replace(rounds_of(WORDS)[0], why="1.9 tokens a round"))
        assert "chain auto 3" in driver.line_with("chain auto")
        await driver.pilot.press("f9")
        assert (driver.app.chat.controls.auto, driver.app.chat.controls.chain) == (False, 4)
        await driver.say("/chain auto")
        assert driver.app.chat.controls.auto
        await driver.pilot.press("f7")
        assert (driver.app.chat.controls.auto, driver.app.chat.controls.chain) == (False, 3)
        assert [c.auto for c in driver.worker.adjusted] == [True, False, True, False]


async def test_keys_are_those_of_the_settings():
    async with running(keys={"chat.chain.longer": "f10, ctrl+up", "prompt.send": "ctrl+s"}) as driver:
        await driver.pilot.press("f10", "ctrl+up", "f9")
        assert "F7/F8/F10 chain" in driver.lines()[-1]
        assert driver.app.chat.controls.chain == 5
        await driver.pilot.press("a", "enter", "ctrl+s")
        await driver.until(lambda: bool(driver.worker.said))
        assert driver.worker.said[0].messages[-1].content == "a\n"
