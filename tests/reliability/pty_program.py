"""The program itself for a pty: the scripted pair, slow enough to be caught in mid-reply. Arguments are the program's,
after an optional first word: "crash" makes F3 a mistake of ours, "deaf" ignores the hang-up of a terminal, "late" has
the screen at work on a part of it that is gone when it is left."""

from __future__ import annotations

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl+C while this file reads the screen's modules is not the program's

import asyncio  # noqa: E402
import sys  # noqa: E402

from textual.widget import MountError  # noqa: E402

from eagle3chat import chat_command  # noqa: E402
from eagle3chat.__main__ import main  # noqa: E402
from eagle3chat.ui.app import ChatApp  # noqa: E402

SECONDS = 0.2  # a round: a reply takes some seconds


def crash(app: ChatApp) -> None:
    secret = "a value that no terminal should show"
    raise RuntimeError(secret)


async def late(app: ChatApp, message: object) -> None:
    await app.host.wake()
    if app.host.replying:
        await asyncio.sleep(0.3)
        if app._exit:
            raise MountError("the reply is no longer there")


if __name__ == "__main__":
    argv = sys.argv[1:]
    if argv[:1] == ["deaf"]:  # no hang-up: only reading and writing tell
        argv = argv[1:]
        ChatApp.leave = lambda app, code: None  # type: ignore[method-assign]
    if argv[:1] == ["crash"]:
        argv = argv[1:]
        ChatApp.action_marks = crash  # type: ignore[method-assign,assignment]
    if argv[:1] == ["late"]:
        argv = argv[1:]
        ChatApp.on_woken = late  # type: ignore[method-assign,assignment]
    read = chat_command.read_wishes

    def slow(*args, **kwargs):  # type: ignore[no-untyped-def]
        import dataclasses

        wishes = read(*args, **kwargs)
        return dataclasses.replace(wishes, options=dataclasses.replace(wishes.options, script_seconds=SECONDS))

    chat_command.read_wishes = slow
    sys.argv = ["eagle3chat", "--backend", "scripted", *argv]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
