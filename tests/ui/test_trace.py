"""The trace of a reply, slow motion, folded thinking."""

from dataclasses import replace

import pytest
from driving import running
from fake_worker import finished, rounds_of, token, tokens_of, whole_reply
from textual.widgets import Static

from eagle3chat.engine.events import Round
from eagle3chat.transcript import Transcript, load
from eagle3chat.ui.glyphs import ASCII, UNICODE
from eagle3chat.ui.marks import Piece
from eagle3chat.ui.pace import Pace
from eagle3chat.ui.screens.trace import Trace, parts
from eagle3chat.ui.thinking import Divider
from eagle3chat.ui.widgets.thought import Thought

LONG = "Some words in a line.\nAnd more of them\n\n" * 60


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_the_trace_holds_the_reply_and_with_drafts_more(glyphs):
    rounds = rounds_of(tokens_of(LONG))
    bare = list(parts(rounds, False, glyphs))
    assert len(bare) > 2
    assert "\n".join(part.plain for part in bare) == LONG
    full = "\n".join(part.plain for part in parts(rounds, True, glyphs))
    assert full.count(f"{glyphs.rejected}_the" if glyphs is ASCII else f"{glyphs.rejected}·the") > 10
    styles = {str(span.style) for part in parts(rounds, True, glyphs) for span in part.spans}
    assert {"$spec-accepted underline", "$spec-correction bold", "$spec-bonus italic"} <= styles
    assert {"$spec-rejected strike", "$spec-unreached"} <= styles


async def test_the_trace_of_any_reply():
    async with running((100, 30)) as driver:
        for said in ("first", "second"):
            await driver.say(said)
            await driver.emit(*whole_reply(f"It was {said} indeed."))
        await driver.say("/trace 1")
        await driver.until(lambda: isinstance(driver.app.screen, Trace))
        await driver.pilot.press("d")
        await driver.pilot.pause()

        def text():
            return "".join(str(w.content) for w in driver.app.screen.query("#trace > Static").results(Static))

        assert text() == "It was first indeed."
        await driver.pilot.press("right")
        await driver.until(lambda: text() == "It was second indeed.")
        assert "reply 2 of 2" in driver.line_with("reply 2")
        await driver.pilot.press("escape", "f4", "t")
        await driver.until(lambda: isinstance(driver.app.screen, Trace))
        await driver.pilot.press("escape", "escape")
        driver.app.stage.prompt.area.text = ""
        await driver.say("/trace 9")
        assert "no such reply" in driver.notice


def test_slow_motion_lets_a_round_through_at_its_time():
    pace = Pace()
    rounds = rounds_of(tokens_of("a b c d e f g h i j k l m n"))
    pace.put([*rounds, finished(rounds)])
    pace.rate = 2.0
    shown = [len(pace.due(now)) for now in (10.0, 10.1, 10.4, 10.5, 10.9, 11.0)]
    assert shown == [1, 0, 0, 1, 0, 1]
    pace.hurry()
    assert len(pace.due(11.01)) == len(rounds) + 1 - 3
    pace.begin()
    pace.put(rounds[:3])
    assert len(pace.due(11.02)) == 0
    pace.rate = 0.0
    assert len(pace.due(11.03)) == 3


async def test_slow_motion_delays_what_is_shown_and_nothing_else(tmp_path):
    async with running((110, 30), transcript=Transcript.create(tmp_path)) as driver:
        await driver.say("/slow 0.1")
        assert "slow motion" in driver.notice
        await driver.say("go")
        await driver.emit(*whole_reply("One two three four five six seven."))
        assert "SLOW 0.1 rounds/s" in driver.line_with("SLOW")
        assert driver.app.host.replying
        assert "seven" not in driver.shown()
        driver.app.record.transcript.flush()
        assert load(driver.app.record.transcript.path).turns[-1].text.endswith("seven.")
        await driver.pilot.press("escape")
        await driver.until(lambda: not driver.app.host.replying)
        assert driver.shown().endswith("seven.")
        usage = driver.app.chat.exchanges[0].reply.finished.usage
        assert f"{usage.generated_tokens / usage.decode_seconds:.0f} tok/s" in driver.line_with("SLOW")
        await driver.say("/slow x")
        assert "/slow takes" in driver.notice
        driver.app.stage.prompt.area.text = ""
        await driver.say("/slow 0")
        assert not any("SLOW" in line for line in driver.lines())


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "thought", "said"),
    [
        ("<think>Hm, <b>.</think>So.", "Hm, <b>.", "So."),
        ("\n<think>\nnever closed", "\nnever closed", "\n"),
        ("Write <think> and </think> tags", "", "Write <think> and </think> tags"),
        ("<thin air", "", "<thin air"),
        ("<think></think><think>text</think>", "", "<think>text</think>"),
    ],
)
def test_thinking_is_divided_from_the_answer(size, text, thought, said):
    divider = Divider()
    found = [p for at in range(0, len(text), size) for p in divider.feed([Piece("plain", text[at : at + size])])]
    found += divider.rest()
    assert "".join(p.piece.text for p in found if p.thought) == thought
    assert "".join(p.piece.text for p in found if not p.thought) == said


def channel_rounds():
    """Gemma 4's channel: control tokens that are no text."""
    rounds = rounds_of(tokens_of("thought\nLet me see. Yes."), chain=0)
    answer = rounds_of(tokens_of("It is so."), chain=0)

    def control(name, index):
        return replace(rounds[0], index=index, own=token(name), text="")

    both = [control("<|channel>", 0), *rounds, control("<channel|>", 0), *answer]
    return [replace(r, index=i) for i, r in enumerate(both)]


@pytest.mark.parametrize("channels", [True, False])
async def test_thinking_is_folded_and_opens(tmp_path, channels):
    async with running(transcript=Transcript.create(tmp_path)) as driver:
        await driver.say("go")
        tagged = rounds_of(tokens_of("<think>Let me see. Yes.</think>It is so."))
        rounds: list[Round] = channel_rounds() if channels else tagged
        await driver.emit(*rounds[:5])
        await driver.emit(*rounds[5:], finished(rounds))
        thought = driver.app.query_one(Thought)
        assert "thought, 4 words" in str(thought.content)
        assert not thought.body.display
        assert thought.body.text.strip() == "Let me see. Yes."
        assert driver.line_with("It is so.").strip() == "It is so."
        await driver.pilot.click(thought)
        assert any("Let me see." in line for line in driver.lines())
        await driver.pilot.click(thought)
        await driver.say("/thoughts")
        assert any("Let me see." in line for line in driver.lines())
        await driver.pilot.press("f6")
        await driver.until(lambda: driver.app.clipboard == "It is so.")
        driver.app.record.close()
        path = driver.app.record.transcript.path
    async with running(past=load(path)) as driver:
        assert "thought, 4 words" in str(driver.app.query_one(Thought).content)
        assert driver.line_with("It is so.").strip() == "It is so."
