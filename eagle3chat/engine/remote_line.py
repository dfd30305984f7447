"""The thread that talks to a server: from the first question to the last reply, one reply after the other.

It has an event loop of its own, so a reply is stopped by closing its connection at once. Knows HTTP by its client.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import httpx

from eagle3chat.engine.errors import Eagle3Error, ServerError
from eagle3chat.engine.events import Event, Failed, Loading, Ready
from eagle3chat.engine.remote_chunk import DONE, keepalive, read_chunk
from eagle3chat.engine.remote_client import Client, StatusError
from eagle3chat.engine.remote_counters import ServerCounters
from eagle3chat.engine.remote_options import ServerOptions
from eagle3chat.engine.remote_reply import RemoteReply
from eagle3chat.engine.remote_request import FIXES, Request, request_for
from eagle3chat.engine.remote_server import Server, find_server
from eagle3chat.engine.remote_speculation import NOTHING
from eagle3chat.engine.remote_sse import Comment, EventReader
from eagle3chat.engine.requests import Say
from eagle3chat.templates.base import Template
from eagle3chat.templates.loader import load_template

BROKEN = "What came is kept; /continue goes on where the server can, /again asks anew."
REFUSALS = (400, 422)
MOST_REFUSALS = 8


class RemoteLine:
    """One thread, started at once.

    Args:
        options: The server.
        on_event: Called on the thread with each event.
        transport: Tests answer by it.
    """

    def __init__(
        self, options: ServerOptions, on_event: Callable[[Event], None], transport: httpx.AsyncBaseTransport | None
    ) -> None:
        self.alive = True
        self._retired = False
        self._options = options
        self._on_event = on_event
        self._transport = transport
        self._loop = asyncio.new_event_loop()
        self._says: asyncio.Queue[Say] = asyncio.Queue()
        self._main: asyncio.Task[None] | None = None
        self._reply: asyncio.Task[None] | None = None
        self._stopped = False  # the reply that runs, or the one that comes next, was stopped
        self._left_out: frozenset[str] = frozenset()  # fields that the server refused
        self._thread = threading.Thread(target=self._run, name="server", daemon=True)
        self._thread.start()

    def call(self, work: Callable[..., None], *args: object) -> None:
        """Do something on the thread, if it still runs."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(work, *args)

    def put(self, say: Say) -> None:
        """On the thread: a reply is wanted."""
        self._says.put_nowait(say)

    def stop(self) -> None:
        """On the thread: end the reply that runs, or the one that is about to."""
        if self._reply is not None and not self._reply.done():
            self._stopped = True
            self._reply.cancel()
        elif not self._says.empty():
            self._stopped = True

    def retire(self, timeout: float) -> None:
        """Deliver nothing more, and end within about `timeout` seconds."""
        self._retired, self.alive = True, False
        self.call(self._end)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def _end(self) -> None:
        if self._main is not None:
            self._main.cancel()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._main = self._loop.create_task(self._serve())
        try:
            with suppress(asyncio.CancelledError):
                self._loop.run_until_complete(self._main)
        except Exception as error:  # noqa: BLE001 - a thread that died in silence would leave the chat waiting
            words = f"What talks to the server ended by a mistake of its own ({type(error).__name__})."
            self._tell(Failed(words, "Restart it; the chat is kept.", fatal=True))
        finally:
            self.alive = False
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def _tell(self, event: Event) -> None:
        if not self._retired:
            self._on_event(event)

    def _fail(self, error: Eagle3Error, *, fatal: bool = False, fix: str = "") -> None:
        key = self._options.key  # a server may repeat it in what it says
        words = error.message.replace(key, "(the key)") if key else error.message
        self._tell(Failed(words, fix or error.fix, fatal=fatal))

    async def _serve(self) -> None:
        client = Client(self._options, self._transport)
        try:
            await self._talk(client)
        finally:
            await client.close()

    async def _talk(self, client: Client) -> None:
        """Ask what it is, then one reply after the other."""
        started = time.monotonic()
        template = self._options.template
        try:
            own = load_template(template) if template is not None else None
            server = await find_server(client, self._options, lambda stage: self._tell(Loading(stage, None)))
        except Eagle3Error as error:
            self.alive = False
            self._fail(error, fatal=True)
            return
        name = own.name if own is not None else ""
        self._tell(Ready(server.info(self._options, name, time.monotonic() - started)))
        counters = ServerCounters(client, server, self._options.timeouts.counters)
        while True:
            await self._answer(await self._says.get(), client, server, own, counters)

    async def _answer(
        self, say: Say, client: Client, server: Server, template: Template | None, counters: ServerCounters
    ) -> None:
        """One reply, from its request to Finished or Failed."""
        reply = RemoteReply(say.controls.sampling.temperature)
        self._reply = asyncio.ensure_future(self._ask(say, reply, client, server, template, counters))
        if self._stopped:
            self._reply.cancel()
        try:
            await self._reply
        except asyncio.CancelledError:
            if not self._stopped or self._retired:
                raise  # not the reply alone: the handle is closed
        except Eagle3Error as error:
            self._stopped = False
            self._fail(error, fix=BROKEN if reply.begun else "")
            return
        stopped, self._stopped = self._stopped, False
        told = NOTHING if reply.told.rounds else await counters.end()
        self._tell(reply.finished("cancelled" if stopped else None, told))

    async def _ask(
        self,
        say: Say,
        reply: RemoteReply,
        client: Client,
        server: Server,
        template: Template | None,
        counters: ServerCounters,
    ) -> None:
        """Post until the server takes it: what it refuses and does not matter is left out."""
        await counters.begin()
        for _ in range(MOST_REFUSALS):
            stops = self._options.stop_strings
            request = request_for(say, server.model, server.dialect, stops, template, self._left_out)
            reply.notes = request.notes
            reply.ask()
            try:
                return await self._read(request, reply, client)
            except ServerError as error:  # some refuse within the stream, after a status of 200
                if reply.begun or (isinstance(error, StatusError) and error.status not in REFUSALS):
                    raise
                refused = _refused(error.message, request)
                if not refused & request.idle:
                    raise _mendable(error, refused) from error
                self._left_out |= refused & request.idle
        raise ServerError("The server refuses every form of the request.", "Is it an OpenAI-compatible server?")

    async def _read(self, request: Request, reply: RemoteReply, client: Client) -> None:
        """Deliver what comes until the server ends it."""
        reader = EventReader()
        async with client.stream(request.path, request.body) as parts:
            async for data in parts:
                for event in reader.feed(data):
                    if self._took(event, reply):
                        return
            for event in reader.end():
                if self._took(event, reply):
                    return
        if not reply.finish:
            raise ServerError("The server ended the reply in the middle.", "Try again.")

    def _took(self, event: str | Comment, reply: RemoteReply) -> bool:
        """Whether the event was the last one."""
        if isinstance(event, Comment):
            if (progress := keepalive(event.text)) is not None and not reply.begun:
                self._tell(progress)
            return False
        if event.strip() == DONE:
            return True
        chunk = read_chunk(event)
        if chunk.prefill is not None and not reply.begun:
            self._tell(chunk.prefill)
        if (round_ := reply.take(chunk)) is not None:
            self._tell(round_)
        return False


def _refused(words: str, request: Request) -> frozenset[str]:
    """The fields that an error speaks of."""
    spoken = set(re.findall(r"\w+", words))
    return frozenset(name for name in request.body if name in spoken and (name in request.idle or name in FIXES))


def _mendable(error: ServerError, refused: frozenset[str]) -> ServerError:
    """The error with what to do about it."""
    fix = next((FIXES[name] for name in sorted(refused) if name in FIXES), "")
    return ServerError(error.message, f"{fix[:1].upper()}{fix[1:]}." if fix else error.fix)
