"""An app under test and its fake worker, and how to wait for either."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fake_worker import FakeWorker
from textual.pilot import Pilot
from textual.widgets import Static
from textual.widgets.markdown import MarkdownBlock, MarkdownFence

from eagle3chat.engine.events import Event, Round
from eagle3chat.engine.requests import Controls, PairOptions
from eagle3chat.engine.sampling import Sampling
from eagle3chat.ui.app import ChatApp
from eagle3chat.ui.widgets.marked_text import MarkedText
from eagle3chat.ui.widgets.rows import Rows
from eagle3chat.ui.widgets.settled import Paragraph
from eagle3chat.ui.widgets.toolkit_markdown import Settled

CONTROLS = Controls(3, Sampling(temperature=0.8, seed=7))


class Driver:
    """A running app."""

    def __init__(self, app: ChatApp, pilot: Pilot[int], worker: FakeWorker) -> None:
        self.app, self.pilot, self.worker = app, pilot, worker

    @property
    def notice(self) -> str:
        return self.app.stage.keys.notice

    async def until(self, true: Callable[[], bool], tries: int = 200) -> None:
        """Wait until something holds."""
        for _ in range(tries):
            if true():
                return
            await self.pilot.pause(0.01)
        raise AssertionError("it did not become true")

    async def say(self, text: str) -> None:
        """Type a message and send it."""
        self.app.stage.prompt.area.text = text
        self.app.stage.prompt.area.move_cursor(self.app.stage.prompt.area.document.end)
        await self.pilot.press("enter")
        await self.pilot.pause()

    async def emit(self, *events: Event) -> None:
        """Let the worker say events, and have all of them drawn."""
        for event in events:
            self.worker.emit(event)
        self.app._wake()
        await self.pilot.pause()
        await self.until(lambda: not self.app.link._waiting)
        await self.pilot.pause()

    async def stream(self, events: Sequence[Event]) -> None:
        """Let the worker say events, some at a time; what lane and meter show does not hang on when they came."""
        for at in range(0, len(events), 3):
            if at + 3 >= len(events):
                self.app.stage._flushes, self.app.stage._rounds = 0, []
            await self.emit(*events[at : at + 3])
        await self.app.stage.flush(all_parts=True)

    async def coloured(self) -> None:
        """Wait until all code has its colours."""
        workers = self.app.workers
        await workers.wait_for_complete([worker for worker in workers if worker.group == "colours"])

    def shown(self) -> str:
        """Text of all replies in the conversation as it is drawn, block after block."""
        parts: list[str] = []
        for widget in self.app.stage.conversation.column.children:
            if isinstance(widget, MarkedText | Rows):
                parts.append(widget.text)
            elif isinstance(widget, Paragraph):
                parts.append(widget.content.plain)
            elif isinstance(widget, Settled):
                parts.append(markdown_text(widget))
        return "\n".join(parts)

    def lines(self) -> list[str]:
        """The screen as rows of text."""
        width, height = self.app.size
        strips = self.app.screen._compositor.render_strips()
        return ["".join(s.text for s in strip)[:width].rstrip() for strip in strips][:height]

    def line_with(self, text: str) -> str:
        return next(line for line in self.lines() if text in line)


def markdown_text(widget: Settled) -> str:
    """What a Markdown widget draws."""
    parts: list[str] = []
    for block in widget.query(MarkdownBlock):
        parts.append(block.code if isinstance(block, MarkdownFence) else block._content.plain)
    for table in widget.query("MarkdownTableContent"):
        parts += [cell.plain for cell in (*table.headers, *(cell for row in table.rows for cell in row))]
    for bullet in widget.query("MarkdownBullet"):
        parts.append(str(getattr(bullet, "symbol", "")))
    return "\n".join(parts)


def said_by(widget: Static) -> str:
    return str(widget.render())


@asynccontextmanager
async def running(
    size: tuple[int, int] = (80, 24), start: list[Event] | None = None, **options: Any
) -> AsyncIterator[Driver]:
    """A chat on a fake worker."""
    workers: list[FakeWorker] = []

    def factory(pair: PairOptions, on_event: Callable[[Event], None]) -> FakeWorker:
        workers.append(FakeWorker(pair, on_event))
        if start is not None:
            workers[0].at_start = start
        return workers[0]

    app = ChatApp(PairOptions(), options.pop("controls", CONTROLS), worker_factory=factory, **options)
    async with app.run_test(size=size) as pilot:
        driver = Driver(app, pilot, workers[0])
        await driver.until(lambda: "start" in workers[0].calls)
        await pilot.pause()
        yield driver


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Round))
