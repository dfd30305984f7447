"""Text from outside, made safe to draw.

Everything that a model, a person, a file or an error wrote passes through here on its way to the screen.
The toolkit drops five control characters and sends the rest to the terminal, which obeys them. The
original text is never changed: the conversation and the transcript keep it.

`clean` looks at one character at a time, so cleaning pieces and joining them equals cleaning the whole.
"""

from __future__ import annotations

_BAD = "\ufffd"

_BIDI_ACTIVE = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))  # embeddings, overrides, isolates: reorder what follows
_SHOWN_AS_BAD = (*range(0x80, 0xA0), *_BIDI_ACTIVE, *range(0xD800, 0xE000), *range(0xFFF9, 0xFFFC))

# Drawn as nothing, or as something that changes the width of its neighbour. U+200C and U+200D stay: scripts need them.
_DROPPED = (
    0x00AD,  # soft hyphen
    0x034F,
    0x061C,
    *range(0x115F, 0x1161),
    *range(0x17B4, 0x17B6),
    *range(0x180B, 0x1810),
    0x200B,
    *range(0x200E, 0x2010),  # left-to-right and right-to-left marks
    *range(0x2060, 0x2066),
    *range(0x206A, 0x2070),
    0x3164,
    *range(0xFE00, 0xFE10),  # variation selectors: terminals disagree about the width that they give
    0xFEFF,
    0xFFA0,
    *range(0x1BCA0, 0x1BCA4),
    *range(0xE0000, 0xE0200),  # tags (a hiding place for text) and variation selectors
)

_TABLE: dict[int, str | None] = {
    **{code: chr(0x2400 + code) for code in range(0x20)},  # control pictures
    0x09: "    ",
    0x0A: "\n",
    0x0D: " ",
    0x7F: "\u2421",
    **dict.fromkeys(_SHOWN_AS_BAD, _BAD),
    **dict.fromkeys(_DROPPED, None),
    0x2028: " ",
    0x2029: " ",
}
_LINE_TABLE: dict[int, str | None] = {**_TABLE, 0x09: " ", 0x0A: " "}
_TOKEN_TABLE: dict[int, str | None] = {**_TABLE, 0x09: "⇥", 0x0A: "⏎", 0x0D: "␍", 0x20: "·"}
_TOKEN_ASCII_TABLE: dict[int, str | None] = {**_TABLE, 0x09: "\\t", 0x0A: "\\n", 0x0D: "\\r", 0x20: "_"}


def clean(text: str) -> str:
    """Text of many lines without control codes: C0 and DEL as pictures, C1 and bidirectional overrides as U+FFFD.

    Newlines stay, tabs become four spaces, a carriage return a space; invisible marks are dropped.
    """
    return text.translate(_TABLE)


def clean_line(text: str) -> str:
    """The same for places that have one line: newlines and tabs become spaces."""
    return text.translate(_LINE_TABLE)


def clean_token(text: str, ascii_only: bool = False) -> str:
    """One token with its white space made visible, for the lane."""
    return text.translate(_TOKEN_ASCII_TABLE if ascii_only else _TOKEN_TABLE)


def clean_draft(text: str) -> str:
    """Text that is typed or pasted into the prompt: line ends become newlines, control codes go, tabs stay."""
    joined = text.replace("\r\n", "\n").replace("\r", "\n")
    kept = (c for c in joined if c in "\n\t" or (ord(c) >= 0x20 and ord(c) != 0x7F and _TABLE.get(ord(c), "") != _BAD))
    return "".join(kept)
