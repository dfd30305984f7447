"""The race: two laps on the worker, both clocks, the text compared; a stop ends it."""

from driving import running
from fake_worker import finished, rounds_of, tokens_of, whole_reply

from eagle3chat.engine.events import Failed, Finished, Round
from eagle3chat.engine.pair import open_pair
from eagle3chat.engine.requests import Controls, Message, PairOptions
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.session import Session
from eagle3chat.transcript import Transcript, load
from eagle3chat.transcript_codec import Note
from eagle3chat.ui.race import Race
from eagle3chat.ui.screens.race import RaceScreen

TEXT = "The same words both times, as they must be."


async def test_a_race_decodes_plainly_and_then_with_a_chain(tmp_path):
    async with running((100, 30), transcript=Transcript.create(tmp_path)) as driver:
        await driver.say("one")
        await driver.emit(*whole_reply("First."))
        await driver.say("/race")
        await driver.until(lambda: isinstance(driver.app.screen, RaceScreen))
        plain = driver.worker.said[-1]
        assert [m.content for m in plain.messages] == ["one"]
        assert (plain.controls.chain, plain.controls.auto) == (0, False)
        await driver.emit(*rounds_of(tokens_of(TEXT), chain=0)[:3])
        await driver.until(lambda: any("of at most 256" in line for line in driver.lines()))
        rounds = rounds_of(tokens_of(TEXT), chain=0)
        await driver.emit(*rounds[3:], finished(rounds))
        fast = driver.worker.said[-1]
        assert len(driver.worker.said) == 3
        assert (fast.messages, fast.controls.chain) == (plain.messages, 3)
        assert fast.controls.sampling == plain.controls.sampling
        rounds = rounds_of(tokens_of(TEXT))
        await driver.emit(*rounds, finished(rounds))
        await driver.until(lambda: any("identical," in line for line in driver.lines()))
        await driver.until(lambda: "tok/s" in driver.line_with("speculative "))  # the page looks at times of its own
        assert "x" in driver.line_with("speculative ")
        await driver.pilot.press("escape")
        await driver.until(lambda: not isinstance(driver.app.screen, RaceScreen))
        assert "the text is identical" in str(driver.app.query(".note").last().content)
        assert driver.shown() == "First."
        await driver.say("two")
        assert [m.content for m in driver.worker.said[-1].messages] == ["one", "First.", "two"]
        notes = [turn for turn in load(driver.app.record.transcript.path).turns if isinstance(turn, Note)]
        assert [note.kind for note in notes] == ["race"]


async def test_a_race_over_a_prompt_of_its_own_is_stopped():
    async with running() as driver:
        await driver.say("/race Write a poem.")
        await driver.until(lambda: isinstance(driver.app.screen, RaceScreen))
        assert driver.worker.said[0].messages == (Message("user", "Write a poem."),)
        rounds = rounds_of(tokens_of(TEXT), chain=0)
        await driver.emit(*rounds[:2])
        await driver.pilot.press("escape")
        assert "cancel" in driver.worker.calls
        await driver.emit(finished(rounds[:2], "cancelled"))
        await driver.until(lambda: any("stopped" in line for line in driver.lines()))
        await driver.pilot.press("escape")
        assert len(driver.worker.said) == 1
        assert driver.app.chat.phase == "idle"


async def test_messages_wait_for_the_end_of_a_race_and_a_dead_worker_ends_it():
    async with running() as driver:
        await driver.say("/race go")
        await driver.app.host.say("later")
        await driver.emit(Failed("The worker died.", "", fatal=True))
        assert driver.app.chat.phase == "down"
        assert len(driver.worker.said) == 1
        await driver.pilot.press("escape", "f5")
        await driver.until(lambda: len(driver.worker.said) == 2)


async def test_there_must_be_something_to_race():
    async with running() as driver:
        await driver.say("/race")
        assert "no turn" in driver.notice
        driver.app.stage.prompt.area.text = ""
        await driver.say("/chain 0")
        await driver.say("/race go")
        assert "chain is off" in driver.notice


def test_a_difference_is_told():
    race = Race((Message("user", "x"),), Controls(3), 100)
    for text, chain in (("a b c d", 0), ("a b x d", 3)):
        rounds = rounds_of(tokens_of(text), chain=chain)
        for event in (*rounds, finished(rounds)):
            race.take(event)
    assert race.difference == 2
    assert "DIFFERS from token 3 on" in race.verdict()


def test_on_a_real_session_the_laps_agree_and_the_next_turn_is_right():
    def decode(session, say):
        events = list(session.reply(say))
        return [event for event in events if isinstance(event, Round | Finished)]

    pair = open_pair(PairOptions(backend="scripted"))
    session = Session(pair)
    race = Race((Message("user", "Hello"),), Controls(4, Sampling(temperature=1.0, seed=5)), 40)
    asked = race.request()
    while not race.over:
        for event in decode(session, race.request()):
            race.take(event)
    assert race.difference is None
    assert race.laps[0].rounds > race.laps[1].rounds
    fresh = Session(open_pair(PairOptions(backend="scripted")))
    assert [e.text for e in decode(session, asked)] == [e.text for e in decode(fresh, asked)]
