"""`eagle3chat` without a command: the chat. Finds the bundle and the transcript, then starts the screen.

Everything that can be refused is refused here, before the screen takes the terminal. Knows the screen's entry
alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from functools import partial
from typing import Any

from eagle3chat.engine.errors import SettingError
from eagle3chat.engine.requests import Controls
from eagle3chat.models import remember
from eagle3chat.opening import bundle_of
from eagle3chat.serving import factory, server_wished, without_bundle
from eagle3chat.transcript import Transcript, find, load
from eagle3chat.transcript_codec import Conversation, Setup
from eagle3chat.wishes import Wishes, flag, read_wishes

TEMPERATURE = 0.8  # so that asking again may answer differently
SCRIPTED_CHAIN = 3
SAMPLING_FLAGS = {name: name for name in ("temperature", "top_k", "top_p", "min_p", "seed", "sharpness")} | {
    name: f"{name}_penalty" for name in ("repetition", "presence", "frequency")
}


def chat(args: argparse.Namespace) -> int:
    """Chat until the person leaves; the exit code.

    Raises:
        Eagle3Error: Anything that the person can mend.
    """
    if not at_terminal():
        return _in_a_pipe(args)
    wishes = read_wishes(args, temperature=TEMPERATURE)
    transcript: Transcript | None = None
    conversation: Conversation | None = None
    private = bool(flag(args, "no_transcript"))
    if resume := flag(args, "resume"):
        transcript, conversation = (None, load(find(resume))) if private else Transcript.resume(find(resume))
        wishes = resumed(args, wishes, conversation)
    elif not private:
        transcript = Transcript.create()
    server = server_wished(args, wishes)
    wishes = bundle_of(wishes, sys.stderr) if server is None else without_bundle(args, wishes)
    if wishes.options.bundle and not private:
        remember(wishes.options.bundle)
    from eagle3chat.engine.worker import DecodeWorker

    given: dict[str, Any] = {
        "controls": wishes.controls(SCRIPTED_CHAIN),
        "keep_seed": flag(args, "seed") is not None,
        "max_new_tokens": wishes.max_new_tokens,
        "system": wishes.system,
        "transcript": transcript,
        "conversation": conversation,
        "worker_factory": DecodeWorker if server is None else factory(server),
    }
    if flag(args, "accessible"):
        from eagle3chat.ui.plain_run import run_plain

        return run_plain(wishes.options, **given)
    from eagle3chat.ui.app import FLUSH_SECONDS
    from eagle3chat.ui.run import run_chat

    if server is None:
        given["worker_factory"] = partial(DecodeWorker, gather=FLUSH_SECONDS / 3)
    settings = wishes.settings
    return run_chat(
        wishes.options,
        **given,
        theme=flag(args, "theme") or settings.theme,
        marks=flag(args, "marks") or settings.marks,
        mouse=not flag(args, "no_mouse") and settings.mouse is not False,
        keys=dict(settings.keys),
    )


def _in_a_pipe(args: argparse.Namespace) -> int:
    """What is piped in is one prompt; the exit code of its `run`.

    Raises:
        Eagle3Error: There is nobody to chat with, or `run` fails.
    """
    if sys.stdin.isatty() or flag(args, "resume"):
        raise SettingError(
            "The chat needs a terminal for its input and its output.", "In pipes and scripts use: eagle3chat run"
        )
    from eagle3chat.run_command import run

    print("eagle3chat: no terminal to chat in: one prompt is read, as by eagle3chat run", file=sys.stderr)
    return run(args)


def at_terminal() -> bool:
    """Somebody can type and see: otherwise the screen would write its codes into a pipe."""
    return sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()  # the toolkit draws on stderr


def resumed(args: argparse.Namespace, wishes: Wishes, conversation: Conversation) -> Wishes:
    """The wishes of a conversation that goes on: flags first, then what was in force at its end.

    Its bundle is opened again unless a flag names another or it is gone.
    """
    given = {field: value for field, name in SAMPLING_FLAGS.items() if (value := flag(args, name)) is not None}
    before: Controls = conversation.controls
    bundle = conversation.pair.bundle
    setup = conversation.setup or Setup()
    again = flag(args, "model") is None and bundle and os.path.isdir(bundle)
    options = dataclasses.replace(wishes.options, bundle=bundle) if again else wishes.options
    if again and setup.template and flag(args, "template") is None and flag(args, "chat_prefix") is None:
        options = dataclasses.replace(options, template=setup.template)
    own_limit = conversation.setup is not None and flag(args, "max_new_tokens") is None
    return dataclasses.replace(
        wishes,
        options=options,
        max_new_tokens=setup.max_new_tokens if own_limit else wishes.max_new_tokens,
        sampling=dataclasses.replace(before.sampling, **given),
        chain=before.chain if flag(args, "chain") is None else wishes.chain,
        auto=before.auto if flag(args, "chain") is None else wishes.auto,
        system=flag(args, "system") or conversation.system or wishes.system,
    )
