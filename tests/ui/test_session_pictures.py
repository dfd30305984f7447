"""The screens of sessions, models and parameters as pictures. After a wanted change: --snapshot-update."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from driving import CONTROLS, Driver
from fake_worker import INFO, FakeWorker

from eagle3chat.engine.requests import PairOptions
from eagle3chat.models import Model
from eagle3chat.transcript_codec import Setup
from eagle3chat.transcript_index import END, MARK, Found
from eagle3chat.transcript_list import Summary
from eagle3chat.ui.app import ChatApp
from eagle3chat.ui.parameters import Parameters
from eagle3chat.ui.screens.models import Models
from eagle3chat.ui.screens.parameters import ParameterPanel
from eagle3chat.ui.screens.sessions import Sessions

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
SIZES = {"narrow": (80, 24), "wide": (160, 48), "tiny": (40, 12)}
TITLES = (
    "A short joke about saving RAM",
    "Why is the sky blue, and why is it red in the evening then?",
    "",
    "日本語の質問",
)


class FakeIndex:
    """Finds the same whatever is looked for."""

    def refresh(self) -> int:
        return 0

    def search(self, words: str, limit: int | None = None) -> list[Found]:
        days = range(26, 0, -1)
        return [
            Found(
                Summary(
                    f"id{day}",
                    Path(f"id{day}.jsonl"),
                    "",
                    f"2025-12-{day:02}T09:00:00+00:00",
                    INFO.model,
                    TITLES[day % len(TITLES)],
                    day,
                    day * 4321,
                ),
                f"so that a {MARK}joke{END} about memory is one that nobody forgets",
            )
            for day in days
        ]

    def count(self, words: str) -> int:
        return 26

    def close(self) -> None:
        pass


def app_and_worker(theme: str) -> tuple[ChatApp, list[FakeWorker]]:
    workers: list[FakeWorker] = []

    def factory(pair, on_event):
        workers.append(FakeWorker(pair, on_event))
        return workers[0]

    return ChatApp(PairOptions(), CONTROLS, theme=theme, flush_seconds=3600.0, worker_factory=factory), workers


def screens(name: str, app: ChatApp):
    models = [
        Model(Path("/bundles/small"), "SmolLM2-135M-Instruct", "smollm2-135m-eagle3", 431_000_000),
        Model(Path("/bundles/large"), "gemma-4-31b-it", "", 18_300_000_000),
        Model(Path("/bundles/odd"), "odd", problem="/bundles/odd: its config.json is missing. Export it again."),
    ]
    match name:
        case "sessions":
            return Sessions(FakeIndex(), None, app.glyphs, clock=lambda: NOW)
        case "models":
            return Models("/bundles/small", app.glyphs, lambda: models)
        case _:
            return ParameterPanel(Parameters(CONTROLS, Setup(512), "Be brief.\nBe kind."), INFO)


def picture(snap_compare, name: str, size: str, theme: str, keys: tuple[str, ...]) -> bool:
    app, workers = app_and_worker(theme)

    async def before(pilot):
        driver = Driver(app, pilot, workers[0])
        await driver.until(lambda: "start" in workers[0].calls)
        app.push_screen(screens(name, app))
        await pilot.pause()
        await driver.until(lambda: "looking" not in "".join(driver.lines()))
        for box in app.screen.query("Input"):
            box.cursor_blink = False
        await pilot.press(*keys)
        await pilot.pause()

    return snap_compare(app, terminal_size=SIZES[size], run_before=before)


@pytest.mark.parametrize(("size", "theme"), [("narrow", "light"), ("tiny", "dark")])
def test_models(snap_compare, size, theme):
    assert picture(snap_compare, "models", size, theme, ("down", "down"))
