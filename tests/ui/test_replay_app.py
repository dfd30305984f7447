"""The chat on a recording: it says everything, and keys turn the time."""

from __future__ import annotations

from pathlib import Path

from fake_worker import INFO, finished, rounds_of, tokens_of
from textual.pilot import Pilot

from eagle3chat.engine.requests import Controls
from eagle3chat.replay import Clockwork
from eagle3chat.transcript import Transcript, load
from eagle3chat.ui.replay_app import ReplayApp


def recording(directory: Path, speed: float = 500.0, keys: dict[str, str] | None = None) -> ReplayApp:
    transcript = Transcript.create(directory)
    transcript.opened(INFO, Controls(2))
    for said, answer in (("first", "one two three four five"), ("second", "six seven eight")):
        transcript.settings(Controls(len(said) - 4))
        transcript.user(said)
        rounds = rounds_of(tokens_of(answer))
        for round_ in rounds:
            transcript.round(round_)
        transcript.reply(finished(rounds))
    transcript.close()
    return ReplayApp(load(transcript.path), Clockwork(speed), keys=keys, flush_seconds=0.02)


async def until(pilot: Pilot[int], true: object) -> None:
    for _ in range(400):
        if true():  # type: ignore[operator]
            return
        await pilot.pause(0.01)
    raise AssertionError("it did not become true")


def texts(app: ReplayApp) -> list[str]:
    return [exchange.reply.text for exchange in app.chat.exchanges if exchange.reply]


async def test_it_runs_by_itself_to_the_end_and_again(tmp_path: Path):
    app = recording(tmp_path)
    async with app.run_test() as pilot:
        for _ in range(2):
            await until(pilot, lambda: texts(app) == ["one two three four five", "six seven eight"])
            await until(pilot, lambda: "over" in app.stage.keys.notice)
            assert app.chat.controls == Controls(2)
            app._clockwork.set_speed(1.0)
            await pilot.press("f5")
            await until(pilot, lambda: len(app.chat.exchanges) < 2)
            app._clockwork.set_speed(500.0)
        app.link.close()
    assert len(list(tmp_path.iterdir())) == 1


async def test_keys(tmp_path: Path):
    app = recording(tmp_path, speed=0.01)  # nothing happens by itself
    async with app.run_test() as pilot:
        await pilot.press("space")
        assert "held" in app.stage.keys.notice
        await until(pilot, lambda: app.chat.phase == "idle")
        await pilot.pause(0.05)
        assert not app.chat.exchanges
        await pilot.press("right")
        await until(pilot, lambda: app.chat.phase == "replying")
        await pilot.press("right", "right")
        await until(pilot, lambda: app.chat.reply is not None and len(app.chat.reply.rounds) == 1)
        await pilot.press("plus")
        assert "x0.02" in app.stage.keys.notice
        await pilot.press("minus", "minus")
        assert "x0.005" in app.stage.keys.notice
        app._clockwork.set_speed(600.0)
        await pilot.press("plus")
        assert "cannot run" in app.stage.keys.notice
        await pilot.press("escape")
        await until(pilot, lambda: texts(app) == ["one two three four five"])
        await pilot.press("x")
        assert not app.stage.prompt.text
        await pilot.press("space")
        await until(pilot, lambda: len(texts(app)) == 2)
        await pilot.press("q")
        app.link.close()
    assert app.return_code == 0
