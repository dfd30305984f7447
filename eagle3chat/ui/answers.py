"""What a terminal answers about its background, taken out of the keys that it sends, however late it comes.

    asked       ESC ] 11 ; ? ST
    answered    ESC ] 11 ; rgb:RRRR/GGGG/BBBB ST (or BEL), xterm's dynamic colours; some add an alpha

An answer that came as keys would be typed into the prompt. Knows no widget.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

QUERY = "\x1b]11;?\x1b\\"
BEGIN = "\x1b]11;"
LONGEST = 64  # characters of an answer; a longer one is none
MUTE = ("dumb", "linux")  # terminals that print the question, or do not know it

_END = re.compile(r"\x07|\x1b\\")
_COLOUR = re.compile(r"rgba?:([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})")


def may_ask(environ: Mapping[str, str]) -> bool:
    """Whether the terminal is one that keeps quiet about a question that it does not know."""
    return environ.get("TERM", "") not in ("", *MUTE)


class Answers:
    """Takes answers out of a stream of keys.

    `light` is whether the background last told of is a light one; None: nothing was told.
    """

    def __init__(self) -> None:
        self.light: bool | None = None
        self._held = ""  # the beginning of what may be an answer

    def without(self, keys: str) -> str:
        """The keys without answers. What may be one waits for the rest of it."""
        text, self._held = self._held + keys, ""
        kept: list[str] = []
        while (at := text.find(BEGIN)) >= 0:
            kept.append(text[:at])
            end = _END.search(text, at + len(BEGIN))
            if end is None and len(text) - at <= LONGEST:
                self._held = text[at:]
                return "".join(kept)
            if end is None or end.start() - at > LONGEST:
                kept.append(text[at : at + len(BEGIN)])
                text = text[at + len(BEGIN) :]
                continue
            self._read(text[at + len(BEGIN) : end.start()])
            text = text[end.end() :]
        cut = next((n for n in range(len(BEGIN) - 1, 1, -1) if text.endswith(BEGIN[:n])), 0)
        self._held = text[len(text) - cut :] if cut else ""
        return "".join((*kept, text[: len(text) - cut]))

    def tick(self) -> str:
        """Some time passed: what waits and is not surely an answer is keys."""
        if not self._held or self._held.startswith(BEGIN):
            return ""
        held, self._held = self._held, ""
        return held

    def _read(self, told: str) -> None:
        if (colour := _COLOUR.match(told)) is not None:
            red, green, blue = (int(part, 16) / (16 ** len(part) - 1) for part in colour.groups())
            self.light = 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
