"""The screen's entry for the command line: run the chat, then leave the terminal and the worker in order."""

from __future__ import annotations

import sys
from collections.abc import Mapping

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
        keys: Keys by the id of a binding.
        worker_factory: Makes the decode worker.

    Returns:
        The exit code.
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
    try:
        app.run()
    finally:
        app.link.close()
        app.record.close()
    kept = app.record.transcript
    if kept is not None and kept.path.exists():
        print(f"To go on with this chat: eagle3chat --resume {kept.id}", file=sys.stderr)
    return app.return_code or 0
