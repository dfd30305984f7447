"""A server in place of a local pair: which one was asked for, and its replies in the foreground.

The key comes from the environment or the settings file, and goes nowhere but to the server. Knows flags and the
remote handle.
"""

from __future__ import annotations

import argparse
import os
import queue
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from eagle3chat.engine.errors import ServerError, SettingError
from eagle3chat.engine.events import Event, Failed, Finished, Info, Loading, Prefill, Ready, Round
from eagle3chat.engine.remote_options import ServerOptions
from eagle3chat.engine.requests import PairOptions, Say
from eagle3chat.wishes import Wishes, flag

if TYPE_CHECKING:
    from eagle3chat.ui.link import WorkerFactory

KEY_VARIABLE = "EAGLE3CHAT_API_KEY"


def server_wished(args: argparse.Namespace, wishes: Wishes) -> ServerOptions | None:
    """The server that the flags name; None: none.

    Raises:
        SettingError: Its address is none, a flag needs another one, or the key cannot be sent.
    """
    url = flag(args, "server")
    if url is None:
        for name in ("server_model", "raw_template"):
            if flag(args, name):
                raise SettingError(f"--{name.replace('_', '-')} is about a server.", "Name it with --server URL.")
        return None
    key = (os.environ.get(KEY_VARIABLE) or wishes.settings.api_key or "").strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise SettingError("The API key holds a character that no key can.", f"Check {KEY_VARIABLE} and api_key.")
    template = wishes.options.template
    if flag(args, "raw_template") and template is None:
        raise SettingError("--raw-template renders the prompt here, but no template is named.", "Add --template NAME.")
    options = ServerOptions(
        url=url,
        model=flag(args, "server_model"),
        key=key,
        template=template if flag(args, "raw_template") else None,
        stop_strings=wishes.options.stop_strings,
    )
    _ = options.origin  # refuses what is no address
    return options


def without_bundle(args: argparse.Namespace, wishes: Wishes) -> Wishes:
    """The same wishes, of which a server needs no bundle.

    Raises:
        SettingError: A bundle was asked for as well.
    """
    if flag(args, "model") is not None:
        raise SettingError("--model and --server exclude each other.", "Give one of them.")
    return replace(wishes, options=replace(wishes.options, bundle=""))


def factory(server: ServerOptions) -> WorkerFactory:
    """Makes the handle of the server; of a local pair once somebody chose a bundle."""
    from eagle3chat.engine.remote_worker import RemoteWorker
    from eagle3chat.engine.worker import DecodeWorker

    def make(options: PairOptions, on_event: Callable[[Event], None]) -> RemoteWorker | DecodeWorker:
        if options.bundle:
            return DecodeWorker(options, on_event)
        template = options.template if server.template is not None else None
        return RemoteWorker(replace(server, template=template), on_event)

    return make


class ServerSession:
    """Replies of a server, one after the other, on the caller's thread.

    Args:
        server: Where it is.
        tell: Called with what goes on while it is asked what it is.

    Raises:
        Eagle3Error: It cannot be used.
    """

    def __init__(self, server: ServerOptions, tell: Callable[[str], None] | None = None) -> None:
        from eagle3chat.engine.remote_worker import RemoteWorker

        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._worker = RemoteWorker(server, self._events.put)
        self._worker.start()
        self.info = self._opened(tell)

    def _opened(self, tell: Callable[[str], None] | None) -> Info:
        while True:
            match self._events.get():
                case Ready(info=info):
                    return info
                case Failed(message=message, fix=fix):
                    self.close()
                    raise ServerError(message, fix)
                case Loading(stage=stage) if tell is not None:
                    tell(stage)

    def reply(self, say: Say) -> Iterator[Prefill | Round | Finished]:
        """The events of one reply.

        Raises:
            ServerError: The server refuses it or breaks off.
        """
        from eagle3chat.engine.remote_line import BROKEN

        self._worker.say(say)
        while True:
            match self._events.get():
                case Failed(message=message, fix=fix):
                    # Chats have commands for what is left of a reply.
                    raise ServerError(message, "What came of the reply is not all." if fix == BROKEN else fix)
                case Finished() as finished:
                    yield finished
                    return
                case Prefill() | Round() as event:
                    yield event

    def cancel(self) -> None:
        """End the reply at once."""
        self._worker.cancel()

    def close(self) -> None:
        """Close the connection."""
        self._worker.close()
