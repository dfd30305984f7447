"""HTTP with one server and no other: addresses, the key, time limits, and what goes wrong as one sentence.

Nothing of the environment is taken (no proxy, no .netrc), and a redirect to another host is refused. TLS certificates
are checked. Knows no models and no replies.
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from eagle3chat import __version__
from eagle3chat.engine.errors import ServerError
from eagle3chat.engine.remote_chunk import error_words, one_line
from eagle3chat.engine.remote_options import ServerOptions

MOST_BYTES = 8 << 20  # of an answer that is no stream
MOST_REDIRECTS = 3
REASONS = {
    401: ("the key is missing or wrong", "Set EAGLE3CHAT_API_KEY, or api_key in the settings file."),
    403: ("the key may not do this", "Set EAGLE3CHAT_API_KEY, or api_key in the settings file."),
    404: ("not found", "Check the address and the model's name."),
    408: ("too slow", "Try again."),
    413: ("too long", "Shorten the conversation, or begin a new one."),
    429: ("too many requests", "Try again in a moment."),
    500: ("an error in the server", "Look at the server's log, or try again."),
    502: ("what is behind it does not answer", "Look at the server's log."),
    503: ("it is busy or loading", "Try again in a moment."),
    504: ("what is behind it is too slow", "Look at the server's log."),
}


class StatusError(ServerError):
    """The server answered with an error.

    Args:
        status: HTTP status.
        words: What it said, on one line.
    """

    def __init__(self, status: int, words: str, wait: str = "") -> None:
        reason, fix = REASONS.get(status, ("refused" if status < 500 else "an error in the server", ""))
        fix = f"Try again in {wait} seconds." if wait.isdecimal() else fix
        super().__init__(f"The server answered with status {status} ({reason}){f': {words}' if words else ''}.", fix)
        self.status = status
        self.words = words


class EmptyError(ServerError):
    """The server answered with nothing."""


class Client:
    """A connection to a server, for one event loop.

    Args:
        options: Where it is.
        transport: Tests answer by it.

    Raises:
        SettingError: The address is none.
    """

    def __init__(self, options: ServerOptions, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._options = options
        headers = {"User-Agent": f"eagle3chat/{__version__}", "Accept-Encoding": "identity"}
        if options.key:
            headers["Authorization"] = f"Bearer {options.key}"
        secure = options.origin.startswith("https") and transport is None
        self._http = httpx.AsyncClient(
            headers=headers,
            transport=transport,
            verify=certificates() if secure else True,
            trust_env=False,
            follow_redirects=False,
        )

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def get(self, path: str, seconds: float | None = None) -> str:
        """The text at a path.

        Raises:
            StatusError: It is not there.
            ServerError: The server does not answer.
        """
        limit = self._options.timeouts.ask if seconds is None else seconds
        request = self._http.build_request("GET", self._options.origin + path, timeout=self._limits(limit))
        async with self._sent(request, limit) as response:
            return (await self._read(response, limit)).decode("utf-8", "replace")

    async def get_json(self, path: str) -> Mapping[str, Any]:
        """The JSON object at a path.

        Raises:
            EmptyError: There is nothing.
            ServerError: As `get`, and where it is none.
        """
        text = await self.get(path)
        if not text.strip():
            raise EmptyError(f"{self._options.place} answers {path} with nothing.", "Look at the server's log.")
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._foreign(path) from error
        if not isinstance(value, dict):
            raise self._foreign(path)
        return value

    @asynccontextmanager
    async def stream(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[AsyncIterator[bytes]]:
        """Post, and read the answer as it comes.

        Raises:
            StatusError: The server refuses.
            ServerError: It does not answer, or breaks off.
        """
        limit = self._options.timeouts.silence
        url = self._options.origin + path
        request = self._http.build_request("POST", url, json=dict(body), timeout=self._limits(limit))
        async with self._sent(request, limit) as response:
            yield self._bytes(response, limit)

    async def _bytes(self, response: httpx.Response, limit: float) -> AsyncIterator[bytes]:
        try:
            async for data in response.aiter_bytes():
                yield data
        except httpx.HTTPError as error:
            raise self._failure(error, limit, begun=True) from error

    @asynccontextmanager
    async def _sent(self, request: httpx.Request, limit: float) -> AsyncIterator[httpx.Response]:
        response = await self._send(request, limit)
        try:
            if response.status_code >= 300:
                raise await self._refusal(response)
            yield response
        finally:
            await response.aclose()

    async def _send(self, request: httpx.Request, limit: float) -> httpx.Response:
        """The answer's head, after redirects within the host; once more where a kept connection had gone stale."""
        retried = False
        redirects = 0
        while True:
            try:
                response = await self._http.send(request, stream=True)
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError) as error:
                if retried:
                    raise self._failure(error, limit) from error
                retried = True
                continue
            except httpx.HTTPError as error:
                raise self._failure(error, limit) from error
            target = response.next_request
            if not response.is_redirect or target is None:
                return response
            await response.aclose()
            redirects += 1
            if not _same_place(target.url, request.url):
                raise ServerError(
                    f"The server sends the request on to {target.url.host}, which is refused.",
                    "Give that address to --server, if it is meant.",
                )
            if redirects > MOST_REDIRECTS:
                raise ServerError("The server sends the request round in circles.", "Check the address.")
            request = target

    async def _refusal(self, response: httpx.Response) -> StatusError:
        try:
            data = await self._read(response, self._options.timeouts.ask)
        except ServerError:
            data = b""
        text = data.decode("utf-8", "replace")
        try:
            value = json.loads(text)
            words = error_words(value, response.status_code) if isinstance(value, dict) else ""
        except (ValueError, RecursionError):
            words = "" if text.lstrip().startswith("<") else one_line(text)  # a page for a browser
        return StatusError(response.status_code, words, response.headers.get("Retry-After", ""))

    async def _read(self, response: httpx.Response, limit: float) -> bytes:
        data = bytearray()
        async for part in self._bytes(response, limit):
            data += part
            if len(data) > MOST_BYTES:
                raise ServerError("The server's answer has no end.", "Is it an OpenAI-compatible server?")
        return bytes(data)

    def _limits(self, seconds: float) -> httpx.Timeout:
        return httpx.Timeout(seconds, connect=min(self._options.timeouts.connect, seconds))

    def _foreign(self, path: str) -> ServerError:
        return ServerError(
            f"{self._options.place} answers {path} with something else than JSON.",
            "Is it an OpenAI-compatible server? Check --server.",
        )

    def _failure(self, error: httpx.HTTPError, limit: float, *, begun: bool = False) -> ServerError:
        place = self._options.place
        match error:
            case httpx.ConnectTimeout():
                return ServerError(f"The server {place} cannot be reached in time.", "Check the address.")
            case httpx.ConnectError():
                return ServerError(f"The server {place} cannot be reached: {_reason(error)}.", "Is it running?")
            case httpx.TimeoutException():
                return ServerError(f"The server {place} said nothing for {limit:g} s.", "Look at it, or try again.")
            case _ if begun:
                return ServerError(f"The server {place} broke off.", "What came before is kept.")
            case _:
                return ServerError(f"The server {place} closed the connection without an answer.", "Is it running?")


def _same_place(one: httpx.URL, other: httpx.URL) -> bool:
    return (one.scheme, one.host, one.port) == (other.scheme, other.host, other.port)


def _reason(error: BaseException) -> str:
    """The innermost reason that says something."""
    reason = ""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted ({cause.verify_message})"
        if isinstance(cause, OSError) and cause.errno:  # of a name that is not found the number is negative
            reason = os.strerror(cause.errno) if cause.errno > 0 else cause.strerror or reason
        cause = cause.__cause__ or cause.__context__
    return one_line(reason or str(error) or "no connection").lower()


def certificates() -> ssl.SSLContext:
    """The machine's authorities and those that come with httpx."""
    import certifi

    context = ssl.create_default_context()
    context.load_verify_locations(cafile=certifi.where())
    return context
