"""What the terminal sends, made safe: pasted text is text, whatever it holds.

The toolkit's parser takes an escape code in a paste for the start of a key: it leaves the paste, the text after it
acts as keys, and its line ends send it. Here a paste is cut out of the stream before the parser sees it. Text that
arrives in one burst without the marks of a paste (a terminal that has none, or a paste that holds the closing mark)
cannot send itself either: an Enter with text behind it, in one read, makes a line.
"""

from __future__ import annotations

import os
import selectors
import sys
import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import IO, Any

from textual import events
from textual._xterm_parser import XTermParser
from textual.driver import Driver
from textual.message import Message

from eagle3chat.ui.answers import QUERY, Answers, may_ask
from eagle3chat.ui.messages import BackgroundTold

START = "\x1b[200~"
END = "\x1b[201~"
BURST_SECONDS = 0.05  # after a burst, in which an Enter is still of it
READ_BYTES = 1 << 16
TICK_SECONDS = 0.1
HUNG_UP = 129  # 128 + SIGHUP, as a shell reports it


class PasteParser(XTermParser):
    """The toolkit's parser for keys and mouse; pastes never reach it.

    Args:
        clock: Seconds.
    """

    def __init__(self, debug: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(debug)
        self._clock = clock
        self._pasted: list[str] | None = None  # the parts of an open paste
        self._held = ""  # what may be the beginning of the closing mark
        self._begun = ""  # what the parser has of a mark that may be the opening one
        self._burst_at = -BURST_SECONDS  # when the last burst was read
        self._answers = Answers()

    def feed(self, data: str) -> Iterator[Message]:
        """Parse what was read; empty: the end."""
        if not data:
            yield from super().feed(data)
            return
        while data:
            if self._pasted is None:
                data = yield from self._keys(data)
            else:
                data = yield from self._paste(data)

    def tick(self) -> Iterator[Message]:
        if held := self._answers.tick():
            yield from super().feed(held)
        for message in super().tick():
            self._begun = ""  # the parser gave up waiting: what it had was a key
            yield message

    def _keys(self, data: str) -> Generator[Message, None, str]:
        """Keys up to the next paste; the text after its mark."""
        whole = self._begun + data
        before, mark, after = whole.partition(START)
        before = before[len(self._begun) :]
        if not mark:
            self._begun = _beginning(whole, START)
            yield from self._typed(data)
            return ""
        if self._begun and whole.startswith(START):
            # The parser has the first half of the mark: give it the rest, and a paste of nothing.
            for message in super().feed(START[len(self._begun) :] + END):
                if not isinstance(message, events.Paste):
                    yield message
        elif before:
            yield from self._typed(before)
        self._begun, self._pasted = "", []
        return after

    def _typed(self, data: str) -> Iterator[Message]:
        """Keys, among them what the terminal answers."""
        before = self._answers.light
        if keys := self._answers.without(data):
            yield from super().feed(self._without_sends(keys))
        light = self._answers.light
        if light is not None and light is not before:
            yield BackgroundTold(light)

    def _paste(self, data: str) -> Generator[Message, None, str]:
        """Text up to the end of the paste; the text after its mark."""
        assert self._pasted is not None
        text, mark, after = (self._held + data).partition(END)
        self._held = "" if mark else _beginning(text, END)
        self._pasted.append(text[: len(text) - len(self._held)])
        if mark:
            pasted, self._pasted = "".join(self._pasted), None
            self._burst_at = self._clock()
            yield events.Paste(pasted.replace("\0", ""))
        return after

    def _without_sends(self, text: str) -> str:
        """Keys in which an Enter that belongs to a burst of text makes a line."""
        if "\r" not in text:
            return text
        lines = text.split("\r")
        burst = any(rest and rest[0].isprintable() for line in lines[1:] if (rest := line.lstrip("\n\t")))
        if burst or self._clock() - self._burst_at < BURST_SECONDS:
            self._burst_at = self._clock()
            return "\n".join(lines)
        return text


def _beginning(text: str, mark: str) -> str:
    """The longest end of the text that may be the beginning of the mark."""
    for size in range(min(len(mark) - 1, len(text)), 0, -1):
        if mark.startswith(text[-size:]):
            return text[-size:]
    return ""


class LastingFile:
    """A terminal's file that goes on when the terminal is gone: text goes nowhere, and its owner is told once.

    The toolkit writes on a thread; an error there would end it, and fill the queue that the screen waits on.
    """

    def __init__(self, file: IO[str], on_gone: Callable[[], None]) -> None:
        self._file = file
        self._on_gone = on_gone
        self._gone = False

    def write(self, text: str) -> None:
        """Write, while there is a terminal."""
        self._try(lambda: self._file.write(text))

    def flush(self) -> None:
        """Flush, while there is a terminal."""
        self._try(self._file.flush)

    def isatty(self) -> bool:
        """Whether it was one."""
        return self._file.isatty()

    def fileno(self) -> int:
        """The descriptor."""
        return self._file.fileno()

    def _try(self, work: Callable[[], object]) -> None:
        if self._gone:
            return
        try:
            work()
        except (OSError, ValueError):  # ValueError: it was closed
            self._gone = True
            self._on_gone()


def safe_driver() -> type[Driver] | None:
    """The driver with this parser; None where the toolkit's own choice must do."""
    if sys.platform == "win32" or os.environ.get("TEXTUAL_DRIVER"):
        return None
    from textual.drivers.linux_driver import LinuxDriver

    class SafeDriver(LinuxDriver):
        """Reads the terminal through `PasteParser`; leaves when the terminal is gone."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._file: Any = LastingFile(self._file, self._leave)

        def start_application_mode(self) -> None:
            super().start_application_mode()  # type: ignore[no-untyped-call]
            if may_ask(os.environ) and self.input_tty:
                self.write(QUERY)  # answered when the terminal likes: nobody waits for it
                self.flush()

        def set_mouse(self, on: bool) -> None:
            """Take the mouse from the terminal, or leave it to it."""
            self._disable_mouse_support()
            self._mouse = on
            self._enable_mouse_support()

        def _leave(self) -> None:
            self._app.call_later(self._app.exit, None, HUNG_UP)

        def run_input_thread(self) -> None:
            try:
                self._read_keys()
            except OSError:
                self._leave()

        def _read_keys(self) -> None:
            parser = PasteParser(self._debug)
            decode = getincrementaldecoder("utf-8")("replace").decode
            with selectors.SelectSelector() as selector:
                selector.register(self.fileno, selectors.EVENT_READ)
                while not self.exit_event.is_set():
                    if selector.select(TICK_SECONDS):
                        data = os.read(self.fileno, READ_BYTES)
                        if not data:
                            return self._leave()
                        self._take(parser.feed(text) if (text := decode(data)) else ())
                    self._take(parser.tick())

        def _take(self, messages: Iterable[Message]) -> None:
            for message in messages:
                self.process_message(message)

    return SafeDriver
