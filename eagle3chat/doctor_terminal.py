"""What `doctor` says about the terminal: what it claims, and what it answers when it is asked."""

from __future__ import annotations

import os
import re
import select
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from eagle3chat.doctor import Finding

ANSWER_SECONDS = 0.5
ASK = b"\x1b[?u\x1b[?2026$p\x1b[c"  # kitty keys? synchronized output? and what every terminal answers
KITTY = re.compile(rb"\x1b\[\?\d+u")
SYNC = re.compile(rb"\x1b\[\?2026;([0-4])\$y")
LAST = re.compile(rb"\x1b\[\?[\d;]*c")


def terminal() -> Iterator[Finding]:
    """Streams, size, colour, signs, clipboard, and its answers."""
    from eagle3chat.ui.clipboard import tools
    from eagle3chat.ui.glyphs import pick_glyphs

    piped = [name for name in ("stdin", "stdout") if not getattr(sys, name).isatty()]
    if piped:
        yield Finding("terminal", "streams", "in a pipe", "off", f"{' and '.join(piped)}: the chat needs a terminal")
    else:
        columns, lines = shutil.get_terminal_size()
        yield Finding("terminal", "size", f"{columns} x {lines}")
    yield Finding("terminal", "kind", os.environ.get("TERM", "unset"))
    yield _colour()
    plain = pick_glyphs(os.environ).ascii_only
    why = "EAGLE3CHAT_ASCII is set, or the locale is not UTF-8"
    yield Finding("terminal", "signs", "ASCII" if plain else "Unicode", "off" if plain else "ok", why if plain else "")
    found = tools(os.environ)
    if found:
        yield Finding("terminal", "clipboard", found[0][1][0])
    else:
        yield Finding("terminal", "clipboard", "asked of the terminal", "off", "no clipboard tool is installed")
    if not piped:
        yield from answers(ask())


def _colour() -> Finding:
    if os.environ.get("NO_COLOR"):
        return Finding("terminal", "colour", "none", "off", "NO_COLOR is set")
    term, depth = os.environ.get("TERM", ""), os.environ.get("COLORTERM", "")
    if depth in ("truecolor", "24bit"):
        return Finding("terminal", "colour", "24 bits")
    if term == "dumb":
        return Finding("terminal", "colour", "none", "bad", "TERM=dumb has no screen to draw on")
    return Finding(
        "terminal", "colour", "256 colours" if "256" in term else "16 colours", "off", "COLORTERM is not set"
    )


def answers(answer: bytes) -> Iterator[Finding]:
    """What the terminal's answer means."""
    if not LAST.search(answer):
        yield Finding("terminal", "answers", "none", "off", f"it said nothing in {ANSWER_SECONDS:g} s")
        return
    if KITTY.search(answer):
        yield Finding("terminal", "keys", "told apart (shift+enter is a key of its own)")
    else:
        yield Finding("terminal", "keys", "plain", "off", "shift+enter may be enter: ctrl+j is a new line everywhere")
    sync = SYNC.search(answer)
    if sync and sync.group(1) in b"12":
        yield Finding("terminal", "whole frames", "yes")
    else:
        yield Finding("terminal", "whole frames", "no", "off", "it may flicker")


def ask(seconds: float = ANSWER_SECONDS) -> bytes:
    """The answer of the terminal; empty where there is none in time."""
    try:
        with _raw(sys.stdin.fileno()) as fd:
            os.write(sys.stdout.fileno(), ASK)
            answer, end = b"", time.monotonic() + seconds
            while not LAST.search(answer) and (left := end - time.monotonic()) > 0:
                if select.select([fd], [], [], left)[0]:
                    answer += os.read(fd, 1024) or b"\x1b[?c"
            return answer
    except OSError:
        return b""


@contextmanager
def _raw(fd: int) -> Iterator[int]:
    """The terminal without echo and line editing; as it was afterwards."""
    import termios
    import tty

    try:
        before = termios.tcgetattr(fd)
        tty.setcbreak(fd)
    except termios.error as error:
        raise OSError(str(error)) from error
    try:
        yield fd
    finally:
        termios.tcsetattr(fd, termios.TCSAFLUSH, before)
