"""`eagle3chat replay`: the chat's screen on a transcript, without a model."""

from __future__ import annotations

import argparse

from eagle3chat.chat_command import at_terminal
from eagle3chat.engine.errors import SettingError, TranscriptError
from eagle3chat.replay import Clockwork, recorded
from eagle3chat.settings import load_settings
from eagle3chat.transcript import find, load
from eagle3chat.wishes import flag


def replay(args: argparse.Namespace) -> int:
    """Show a conversation as it went; the exit code.

    Raises:
        Eagle3Error: There is no such transcript, nothing in it to show, no terminal, or no such speed.
    """
    clockwork = Clockwork(args.speed)
    conversation = load(find(args.id))
    if not recorded(conversation):
        raise TranscriptError("That conversation holds no reply with its rounds.", "Choose another one.")
    if not at_terminal():
        raise SettingError("A replay needs a terminal.", "In pipes use: eagle3chat transcripts show")
    settings = load_settings()
    from eagle3chat.ui.replay_app import ReplayApp

    app = ReplayApp(
        conversation,
        clockwork,
        theme=flag(args, "theme") or settings.theme or "auto",
        marks=flag(args, "marks") or settings.marks or "full",
        keys=dict(settings.keys),
    )
    try:
        app.run()
    finally:
        app.link.close()
    return app.return_code or 0
