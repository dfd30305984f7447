"""The entry of the chat without a screen: the person's lines from the terminal, the replies as lines."""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress

from eagle3chat.engine.requests import Controls, PairOptions
from eagle3chat.transcript import Transcript
from eagle3chat.transcript_codec import Conversation
from eagle3chat.ui.chat import Chat
from eagle3chat.ui.link import WorkerFactory
from eagle3chat.ui.plain import PlainChat
from eagle3chat.ui.record import Record


def run_plain(
    options: PairOptions,
    *,
    controls: Controls,
    worker_factory: WorkerFactory,
    keep_seed: bool = False,
    max_new_tokens: int | None = None,
    system: str | None = None,
    transcript: Transcript | None = None,
    conversation: Conversation | None = None,
) -> int:
    """Chat until the person leaves.

    Args:
        options: The pair to open.
        controls: Chain and sampling to begin with.
        worker_factory: Makes the worker.
        keep_seed: The seed was asked for, so a new conversation keeps it.
        max_new_tokens: Limit of each reply; None: to the end of the context.
        system: The system message.
        transcript: Where the conversation is written; None: nowhere.
        conversation: What `transcript` holds already.

    Returns:
        The exit code.
    """
    with suppress(ImportError):
        importlib.import_module("readline")  # `input` edits its line with it
    record = Record(transcript, options.bundle, lambda text: print(text, file=sys.stderr))
    chat = Chat(controls, max_new_tokens, system or "", keep_seed=keep_seed)
    try:
        code = PlainChat(chat, record, options, worker_factory, input, sys.stdout).run(conversation)
    finally:
        record.close()
    kept = record.transcript
    if kept is not None and kept.path.exists():
        print(f"To go on with this chat: eagle3chat --accessible --resume {kept.id}")
    return code
