"""Servers on loopback that answer as the real ones do: recorded shapes, and every way of failing."""

from __future__ import annotations

import json
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from eagle3chat.engine.events import Event, Failed, Finished, Ready, Round
from eagle3chat.engine.remote_options import ServerOptions, Timeouts
from eagle3chat.engine.remote_worker import RemoteWorker
from eagle3chat.engine.requests import Controls, Message, Say
from eagle3chat.engine.sampling import Sampling

SHORT = Timeouts(connect=2.0, ask=2.0, silence=2.0, counters=2.0, loading=2.0)
LIMIT = 10.0


@dataclass
class Seen:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class Handler(BaseHTTPRequestHandler):
    server: FakeHTTP

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(json.loads(data))

    def _answer(self, body: dict[str, Any]) -> None:
        fake = self.server.fake
        path = self.path.partition("?")[0]
        fake.seen.append(Seen(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body))
        route = fake.routes.get(path)
        try:
            if route is None:
                self.json({"error": {"message": "no such route"}}, 404)
            else:
                route(self)
        except (BrokenPipeError, ConnectionResetError):
            fake.dropped.set()

    @property
    def request_body(self) -> dict[str, Any]:
        return self.server.fake.seen[-1].body

    def json(self, value: object, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.text(json.dumps(value), status, {"Content-Type": "application/json", **(headers or {})})

    def text(self, value: str, status: int = 200, headers: dict[str, str] | None = None) -> None:
        data = value.encode()
        self.send_response(status)
        for name, held in (headers or {}).items():
            self.send_header(name, held)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def begin(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()

    def put(self, data: bytes) -> None:
        self.wfile.write(data)
        self.wfile.flush()

    def reset(self) -> None:
        """Go as a killed process does."""
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def log_message(self, *args: object) -> None:
        pass


class FakeHTTP(ThreadingHTTPServer):
    daemon_threads = True
    fake: FakeServer

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a connection that was reset on purpose


Route = Callable[[Handler], None]


@dataclass
class FakeServer:
    """One server."""

    routes: dict[str, Route]
    seen: list[Seen] = field(default_factory=list)
    dropped: threading.Event = field(default_factory=threading.Event)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def asked(self, path: str) -> list[Seen]:
        return [seen for seen in self.seen if seen.path.partition("?")[0] == path]


@contextmanager
def serving(routes: dict[str, Route], port: int = 0) -> Iterator[FakeServer]:
    fake = FakeServer(routes)
    http = FakeHTTP(("127.0.0.1", port), Handler)
    http.fake = fake
    fake.port = http.server_address[1]
    thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def models(owner: str, **more: object) -> Route:
    entry = {"id": "gemma", "object": "model", "owned_by": owner, **more}
    return lambda h: h.json({"object": "list", "data": [entry]})


def event(value: object) -> bytes:
    return b"data: " + (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).encode() + b"\n\n"


def delta(content: str | None = None, finish: str | None = None, **more: object) -> dict[str, Any]:
    inner = {"content": content} if content is not None else {}
    reasoning = {k: more.pop(k) for k in ("reasoning", "reasoning_content") if k in more}
    return {"choices": [{"index": 0, "delta": inner | reasoning, "finish_reason": finish}], **more}


def stream(*parts: bytes | float | str) -> Route:
    """Bytes are sent as they are, numbers are waits, "reset" ends as a killed process does."""

    def route(h: Handler) -> None:
        h.begin()
        for part in parts:
            if part == "reset":
                return h.reset()
            if isinstance(part, float):
                time.sleep(part)
            else:
                h.put(part)

    return route


def endless(h: Handler) -> None:
    h.begin()
    for i in range(2000):
        h.put(event(delta(f"word{i} ")))
        time.sleep(0.02)


DONE = event("[DONE]")
HELLO = stream(event(delta("Hel")), event(delta("lo.")), event(delta(None, "stop")), DONE)


class Heard:
    """A handle and what it said."""

    def __init__(self, url: str, timeouts: Timeouts = SHORT, **options: Any) -> None:
        self._queue: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.events: list[Event] = []
        self.worker = RemoteWorker(ServerOptions(url, timeouts=timeouts, **options), self._queue.put)
        self.worker.start()

    def next(self) -> Event:
        event = self._queue.get(timeout=LIMIT)
        self.events.append(event)
        return event

    def quiet(self, seconds: float = 0.3) -> bool:
        try:
            self.events.append(self._queue.get(timeout=seconds))
        except queue.Empty:
            return True
        return False

    def until(self, *kinds: type) -> Any:
        while not isinstance(event := self.next(), kinds):
            pass
        return event

    def opened(self) -> Ready | Failed:
        return self.until(Ready, Failed)

    def reply(self, text: str = "Hi", **sampling: Any) -> Finished | Failed:
        """Ask, and wait for the end; what came meanwhile is in `events`."""
        self.events.clear()
        self.worker.say(asking(text, **sampling))
        return self.until(Finished, Failed)

    @property
    def rounds(self) -> list[Round]:
        return [e for e in self.events if isinstance(e, Round)]

    @property
    def text(self) -> str:
        return "".join(r.text for r in self.rounds)


def asking(text: str = "Hi", **sampling: Any) -> Say:
    return Say((Message("user", text),), Controls(3, Sampling(**sampling)), 64)


@contextmanager
def talking(fake: FakeServer, **options: Any) -> Iterator[Heard]:
    heard = Heard(fake.url, **options)
    try:
        yield heard
    finally:
        heard.worker.close()
