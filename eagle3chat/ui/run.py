"""The screen's entry for the command line: run the chat, then leave the terminal and the worker in order."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType

from eagle3chat.engine.requests import Controls, PairOptions
from eagle3chat.engine.worker import DecodeWorker
from eagle3chat.transcript import Transcript
from eagle3chat.transcript_codec import Conversation
from eagle3chat.ui.app import ChatApp
from eagle3chat.ui.history import History, default_history_path
from eagle3chat.ui.link import WorkerFactory


def run_chat(
    options: PairOptions,
    *,
    controls: Controls,
    keep_seed: bool = False,
    max_new_tokens: int | None = None,
    system: str | None = None,
    transcript: Transcript | None = None,
    conversation: Conversation | None = None,
    theme: str | None = None,
    marks: str | None = None,
    mouse: bool = True,
    keys: Mapping[str, str] | None = None,
    worker_factory: WorkerFactory = DecodeWorker,
) -> int:
    """Chat until the person leaves.

    The screen restores the terminal first, on a signal too; then the worker is closed, in bounded time.

    Args:
        options: The pair to open.
        controls: Chain and sampling to begin with.
        keep_seed: The seed was asked for, so a new conversation keeps it.
        max_new_tokens: Limit of each reply; None: to the end of the context.
        system: The system message.
        transcript: Where the conversation is written; None: nowhere.
        conversation: What `transcript` holds already.
        theme: A theme's name, "dark", "light" or "auto".
        marks: "full", "subtle" or "off".
        mouse: The screen takes the mouse from the terminal.
        keys: Keys by the id of a binding.
        worker_factory: Makes the decode worker.

    Returns:
        The exit code.

    Raises:
        BaseException: A mistake of ours that ended the screen; terminal and transcript are in order.
    """
    app = ChatApp(
        options,
        controls,
        keep_seed=keep_seed,
        transcript=transcript,
        max_new_tokens=max_new_tokens,
        system=system or "",
        past=conversation,
        theme=theme or "auto",
        marks=marks or "full",
        history=History(default_history_path() if transcript is not None else None),
        keys=keys,
        worker_factory=worker_factory,
    )
    with _signals(app.leave):
        try:
            app.run(mouse=mouse)
        finally:
            app.record.close()
            app.link.close()
    if app.crash is not None:
        raise app.crash
    kept = app.record.transcript
    if kept is not None and kept.path.exists():
        with suppress(OSError):  # the terminal is gone
            print(f"To go on with this chat: eagle3chat --resume {kept.id}", file=sys.stderr, flush=True)
    return app.return_code or 0


@contextmanager
def _signals(leave: Callable[[int], None]) -> Iterator[None]:
    """Signals that ask for an end call `leave` with the exit code, as often as they come, from before the screen
    takes the terminal until all is closed. (The event loop's own handlers end before that.)"""
    came = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        leave(128 + number)

    before = {sign: signal.signal(sign, handle) for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for sign, handler in before.items():
            signal.signal(sign, signal.SIG_IGN if came else handler)  # the process ends as it was asked to
