"""The screen as a picture. After a wanted change: pytest tests/ui/test_snapshots.py --snapshot-update."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from driving import CONTROLS, Driver
from fake_worker import INFO, FakeWorker, whole_reply

from eagle3chat.engine.events import Event, Failed, Loading, Prefill, Ready
from eagle3chat.engine.requests import PairOptions
from eagle3chat.ui.app import ChatApp

TEXT = (
    "Why did the computer programmer refuse to buy a new car?\n\n"
    "Because he didn't have enough **space**, but he had plenty of `room` for improvement:\n\n"
    "- one more item that is longer than a line of eighty columns is, so that it has to wrap\n- two\n\n"
    "```python\ndef save(ram: int) -> int:\n    return ram // 2\n```\n\n"
    "And a last line that is still being written while the lane shows what was drafted"
)
REPLY = whole_reply(TEXT)
STREAMING = REPLY[:-6]
SIZES = {"narrow": (80, 24), "wide": (160, 48), "tiny": (40, 12)}


def picture(
    snap_compare: Callable[..., bool],
    size: tuple[int, int],
    reply: list[Event],
    *,
    theme: str = "dark",
    start: list[Event] | None = None,
    keys: tuple[str, ...] = (),
) -> bool:
    """Compare the screen after a reply with its picture."""
    workers: list[FakeWorker] = []

    def factory(pair: PairOptions, on_event: Callable[[Event], None]) -> FakeWorker:
        workers.append(FakeWorker(pair, on_event))
        workers[0].at_start = [Ready(INFO)] if start is None else start
        return workers[0]

    app = ChatApp(PairOptions(), CONTROLS, theme=theme, flush_seconds=3600.0, worker_factory=factory)

    async def before(pilot):
        driver = Driver(app, pilot, workers[0])
        app.animation_level = "none"  # no cursor that blinks
        app.stage.prompt.area.cursor_blink = False
        await driver.until(lambda: "start" in workers[0].calls)
        await pilot.pause()
        if reply:
            await driver.say("Write a short joke about saving RAM.")
            await driver.stream(reply)
        await driver.coloured()
        await pilot.press(*keys)
        app.stage.prompt.area.cursor_blink = False
        await pilot.pause()

    return snap_compare(app, terminal_size=size, run_before=before)


def test_loading(snap_compare):
    assert picture(snap_compare, SIZES["narrow"], [], start=[Loading("reading weights", 0.43)])


def test_failed(snap_compare):
    gone = Failed("The decode worker was killed (signal 9).", "Its log may say more.", fatal=True)
    assert picture(snap_compare, SIZES["narrow"], [Prefill(40, 40, 0), *STREAMING[1:12], gone])


def test_help(snap_compare):
    assert picture(snap_compare, (120, 56), [], keys=("f1",))


@pytest.mark.parametrize("size", SIZES)
def test_trace(snap_compare, size):
    theme = "light" if size == "wide" else "ansi-dark"
    assert picture(snap_compare, SIZES[size], REPLY, theme=theme, keys=(*"/trace", "enter"))
