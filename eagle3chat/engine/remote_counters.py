"""A server's counters before and after a reply. They are asked for only while the replies themselves tell nothing.

What cannot be read is not known; a reply never fails for its figures. Knows no replies.
"""

from __future__ import annotations

import asyncio

from eagle3chat.engine.errors import ServerError
from eagle3chat.engine.events import Told
from eagle3chat.engine.remote_client import Client
from eagle3chat.engine.remote_metrics import Counters, counters, gauge, since
from eagle3chat.engine.remote_server import Server
from eagle3chat.engine.remote_speculation import NOTHING, drafts

PATH = "/metrics"
LAG_SECONDS = 0.3  # counters may move after the reply is out


class ServerCounters:
    """The counters of one server.

    Args:
        seconds: To wait for them.
    """

    def __init__(self, client: Client, server: Server, seconds: float) -> None:
        self._client = client
        self._server = server
        self._seconds = seconds
        self._before: Counters | None = None
        self._asked = False  # before the reply
        self._absent = not (server.dialect.counters or server.dialect.gauge)

    async def begin(self) -> None:
        """A reply is about to be asked for."""
        self._before, self._asked = None, False
        if not self._absent and self._server.dialect.counters:
            self._before, self._asked = self._counters(await self._text()), True

    async def end(self) -> Told:
        """What they say of a reply that came. If they could not be read before it they are not asked for again."""
        dialect = self._server.dialect
        self._absent = self._absent or (self._asked and self._before is None)
        if self._absent:
            return NOTHING
        if not dialect.counters:
            return self._gauge(await self._text())
        for wait in (0.0, LAG_SECONDS):
            await asyncio.sleep(wait)
            after = self._counters(await self._text())
            told = since(self._before, after, f"the counters of {dialect.name}")
            if told.rounds or after is None or after != self._before:
                return told
        return NOTHING

    async def _text(self) -> str:
        try:
            return await self._client.get(PATH, self._seconds)
        except ServerError:
            return ""

    def _counters(self, text: str) -> Counters | None:
        names = (self._server.model, *self._server.aliases)
        found = (counters(text, self._server.dialect.counters, name) for name in names)
        return next((value for value in found if value is not None), None)

    def _gauge(self, text: str) -> Told:
        dialect = self._server.dialect
        tau = next(
            (v for n in (self._server.model, *self._server.aliases) if (v := gauge(text, dialect.gauge, n))), None
        )
        source = f"a gauge of {dialect.name} over its last replies"
        return drafts(source, rounds=None, drafted=None, accepted=None, tau=tau, shared=True)
