"""Server-sent events: bytes in, the data of whole events out.

Format: WHATWG HTML, "Server-sent events". A line ends with LF, CR LF or CR; a blank line ends an event; a line that
begins with a colon is a comment. Lines are cut before they are decoded, so a character may arrive in halves.
Knows no HTTP and no JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from eagle3chat.engine.errors import ServerError

MOST_BYTES = 16 << 20  # of one line: more is no reply


@dataclass(frozen=True, slots=True)
class Comment:
    """A line that is no event: a sign of life."""

    text: str


class EventReader:
    """Reads one stream."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._data: list[str] = []

    def feed(self, data: bytes) -> Iterator[str | Comment]:
        """The data of events that are complete, and comments, in order.

        Raises:
            ServerError: A line is endless, or not UTF-8.
        """
        self._bytes += data
        while (line := self._line()) is not None:
            yield from self._take(line)
        if len(self._bytes) > MOST_BYTES:
            raise ServerError("The server sent a line without an end.", "Is it an OpenAI-compatible server?")

    def end(self) -> Iterator[str | Comment]:
        """The stream is over: what came without its blank line counts, since some servers leave it out."""
        yield from self.feed(b"\n\n")

    def _line(self) -> bytes | None:
        ends = [at for at in (self._bytes.find(b"\n"), self._bytes.find(b"\r")) if at >= 0]
        if not ends:
            return None
        at, size = min(ends), 1
        if self._bytes[at] == 13:  # CR: the LF that may belong to it must have come
            if at + 1 == len(self._bytes):
                return None
            size = 1 + (self._bytes[at + 1] == 10)
        line = bytes(self._bytes[:at])
        del self._bytes[: at + size]
        return line

    def _take(self, line: bytes) -> Iterator[str | Comment]:
        if not line:
            data, self._data = self._data, []
            if data:
                yield "\n".join(data)
            return
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise ServerError("The server sent text that is not UTF-8.", "What came before is kept.") from error
        if text.startswith(":"):
            yield Comment(text[1:].strip())
            return
        name, _, value = text.partition(":")
        if name == "data":
            self._data.append(value.removeprefix(" "))
