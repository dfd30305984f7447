"""Replies anew, alternatives, going on, editing, deletion: on the screen, in the requests, and after a resume."""

from driving import running
from fake_worker import INFO, finished, rounds_of, tokens_of, whole_reply

from eagle3chat.engine.events import Failed
from eagle3chat.engine.requests import Message
from eagle3chat.transcript import Transcript, load
from eagle3chat.transcript_line import exchanges


async def talk(driver, *pairs):
    for said, reply in pairs:
        await driver.say(said)
        await driver.emit(*whole_reply(reply))


def contents(say):
    return [message.content for message in say.messages]


def kept(driver):
    """What a resume would find, as what the screen holds."""
    driver.app.record.transcript.flush()
    found = exchanges(load(driver.app.record.transcript.path))
    return [(e.said, [r.text for r in e.replies], e.chosen) for e in found if e.replies]


def held(driver):
    return [(e.said, [r.text for r in e.replies], e.chosen) for e in driver.app.chat.exchanges]


async def test_another_reply_has_a_new_seed_and_the_old_one_is_kept(tmp_path):
    async with running(transcript=Transcript.create(tmp_path), size=(100, 30)) as driver:
        await talk(driver, ("hi", "First."))
        await driver.pilot.press("ctrl+r")
        await driver.until(lambda: len(driver.worker.said) == 2)
        first, second = driver.worker.said
        assert contents(second) == ["hi"]
        assert second.controls.sampling.seed != first.controls.sampling.seed
        await driver.emit(*whole_reply("Second one."))
        assert driver.shown() == "Second one."
        assert "reply 2 of 2" in driver.line_with("tokens")
        await driver.pilot.press("ctrl+l")
        await driver.until(lambda: driver.shown() == "First.")
        assert "reply 1 of 2" in driver.line_with("tokens")
        assert held(driver) == kept(driver) == [("hi", ["First.", "Second one."], 0)]
        await driver.say("and?")
        assert contents(driver.worker.said[-1]) == ["hi", "First.", "and?"]
        await driver.emit(*whole_reply("Ok."))
        await driver.say("/alternative 2")
        assert "one reply" in driver.notice


async def test_another_reply_that_fails_leaves_the_old_one():
    async with running() as driver:
        await talk(driver, ("hi", "First."))
        await driver.say("/again")
        await driver.emit(Failed("It broke.", ""))
        assert driver.shown() == "First."
        assert held(driver) == [("hi", ["First."], 0)]
        assert driver.app.stage.prompt.text == ""


async def test_a_stopped_reply_goes_on_as_one(tmp_path):
    async with running(transcript=Transcript.create(tmp_path), size=(100, 30)) as driver:
        await driver.say("go")
        start = rounds_of(tokens_of("One sentence that is"))
        await driver.emit(*start)
        await driver.pilot.press("escape")
        await driver.emit(finished(start, "cancelled"))
        await driver.say("/continue")
        say = driver.worker.said[-1]
        ids = tuple(token.id for r in start for token in r.tokens)
        assert say.messages[-1] == Message("assistant", "One sentence that is", ids)
        await driver.emit(*whole_reply(" cut in two.", position=44))
        assert driver.shown() == "One sentence that is cut in two."
        reply = driver.app.chat.exchanges[0].reply
        assert [r.index for r in reply.rounds] == list(range(len(reply.rounds)))
        assert reply.finished.usage.rounds == len(reply.rounds)
        assert reply.finished.usage.generated_tokens == sum(r.emitted for r in reply.rounds)
        assert held(driver) == kept(driver) == [("go", ["One sentence that is cut in two."], 0)]
        again = exchanges(load(driver.app.record.transcript.path))[0].reply
        assert (again.rounds, again.finished) == (reply.rounds, reply.finished)
        await driver.say("/continue")
        assert "complete" in driver.notice


async def test_a_reply_that_went_on_and_was_killed_is_all_there(tmp_path):
    async with running(transcript=Transcript.create(tmp_path)) as driver:
        await driver.say("go")
        start = rounds_of(tokens_of("One two three"))
        await driver.emit(*start, finished(start, "cancelled"))
        await driver.say("/continue")
        await driver.emit(*rounds_of(tokens_of(" four five")))
        assert kept(driver) == [("go", ["One two three four five"], 0)]


async def test_an_earlier_message_is_written_anew(tmp_path):
    async with running(transcript=Transcript.create(tmp_path)) as driver:
        await talk(driver, ("one", "First."), ("two", "Second."), ("three", "Third."))
        await driver.say("/edit 2")
        assert driver.app.stage.prompt.text == "two"
        assert "editing message 2 of 3" in driver.notice
        await driver.pilot.press("escape")
        assert driver.app.stage.prompt.text == ""
        assert len(held(driver)) == 3
        await driver.say("/edit 2")
        await driver.pilot.press(*" b", "enter")
        await driver.until(lambda: len(driver.worker.said) == 4)
        assert contents(driver.worker.said[-1]) == ["one", "First.", "two b"]
        assert [str(w.content) for w in driver.app.query(".said")] == ["one", "two b"]
        await driver.emit(*whole_reply("Other."))
        assert held(driver) == kept(driver) == [("one", ["First."], 0), ("two b", ["Other."], 0)]
        assert driver.shown() == "First.\nOther."


async def test_the_last_turn_is_deleted_and_comes_back_from_the_history(tmp_path):
    async with running(transcript=Transcript.create(tmp_path)) as driver:
        await talk(driver, ("one", "First."), ("two", "Second."))
        await driver.say("/delete")
        assert driver.shown() == "First."
        assert held(driver) == kept(driver) == [("one", ["First."], 0)]
        await driver.pilot.press("up", "up")
        assert driver.app.stage.prompt.text in ("two", "/delete")
        await driver.say("/delete")
        await driver.say("/delete")
        assert "no turn" in driver.notice
        assert not driver.app.query(".label")


async def test_nothing_is_changed_while_a_reply_streams():
    async with running() as driver:
        await talk(driver, ("one", "First."))
        await driver.say("two")
        for command in ("/again", "/continue", "/edit", "/delete", "/alternative", "/race"):
            driver.app.stage.prompt.area.text = ""
            await driver.say(command)
            assert "Esc stops it" in driver.notice, command
        assert len(driver.worker.said) == 2


async def test_a_changed_conversation_is_drawn_as_it_was_left(tmp_path):
    async with running(transcript=Transcript.create(tmp_path)) as driver:
        await talk(driver, ("one", "First."), ("two", "Second."))
        await driver.pilot.press("ctrl+r")
        await driver.emit(*whole_reply("Second again."))
        await driver.say("unanswered")
        path = driver.app.record.transcript.path
        driver.app.record.close()
    async with running(past=load(path)) as driver:
        assert driver.shown() == "First.\nSecond again."
        assert driver.app.stage.prompt.text == "unanswered"
        assert driver.app.chat.info == INFO
        await driver.pilot.press("ctrl+l")
        await driver.until(lambda: driver.shown() == "First.\nSecond.")


async def test_copies_are_the_source():
    async with running() as driver:
        reply = "Text with **stars**:\n\n```python\nx = [1]\n\ny = 2\n```\n\n- a\n"
        await talk(driver, ("one", reply))
        await driver.pilot.press("f6")
        await driver.until(lambda: driver.app.clipboard == reply)
        await driver.until(lambda: "sent to the terminal's clipboard" in driver.notice)
        await driver.say("/copy code")
        await driver.until(lambda: driver.app.clipboard == "x = [1]\n\ny = 2")
        await driver.say("/copy all")
        await driver.until(lambda: driver.app.clipboard == f"## you\n\none\n\n## model\n\n{reply}")
        await driver.say("/copy house")
        assert "does not know" in driver.notice


async def test_the_beginning_of_the_last_reply():
    async with running((80, 16)) as driver:
        await talk(driver, ("go", "Begin here.\n\n" + "line\n\n" * 30))
        await driver.pilot.press("f12")
        await driver.pilot.pause()
        assert any("Begin here." in line for line in driver.lines())
        assert "more below" in driver.lines()[-1]


async def test_a_long_chat_keeps_its_widgets_bounded(monkeypatch):
    monkeypatch.setattr("eagle3chat.ui.widgets.conversation.SHOWN_TURNS", 3)
    monkeypatch.setattr("eagle3chat.ui.widgets.conversation.SPARE_TURNS", 1)
    async with running() as driver:
        await talk(driver, *((f"m{i}", f"r{i}") for i in range(7)))
        assert [str(w.content) for w in driver.app.query(".said")] == ["m4", "m5", "m6"]
        assert "4 earlier turns" in str(driver.app.query_one(".note").content)
        await driver.say("/delete")
        await driver.say("/edit 2")
        await driver.pilot.press("enter")
        await driver.until(lambda: len(driver.worker.said) == 8)
        assert contents(driver.worker.said[-1]) == ["m0", "r0", "m1"]


async def test_a_turn_is_found_by_its_text(monkeypatch):
    monkeypatch.setattr("eagle3chat.ui.widgets.conversation.SHOWN_TURNS", 3)
    monkeypatch.setattr("eagle3chat.ui.widgets.conversation.SPARE_TURNS", 1)
    async with running((80, 14)) as driver:
        await talk(driver, *((f"m{i}", f"Reply.\n\n- **needle{i % 3}** {i}\n\nend") for i in range(7)))
        for message, place in (("/find NEEDLE0", 7), ("/find NEEDLE0", 4), ("/find NEEDLE0", 1), ("/find NEEDLE0", 7)):
            driver.app.stage.prompt.area.text = ""
            await driver.say(message)
            await driver.pilot.pause()
            assert f"message {place} of 7" in driver.notice
            assert any(f"needle0 {place - 1}" in line for line in driver.lines()), place
        await driver.say("/find haystack")
        assert "No turn holds" in driver.notice
