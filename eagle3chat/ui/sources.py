"""What can be copied of a conversation, as it was written: never what wrapping or Markdown made of it. No widget."""

from __future__ import annotations

import re

from eagle3chat.engine.errors import SettingError
from eagle3chat.ui.chat import Chat
from eagle3chat.ui.clean import clean
from eagle3chat.ui.thinking import answer

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})[^\n]*\n(.*?)(?:^ {0,3}\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)


def source(chat: Chat, what: str) -> tuple[str, str]:
    """Its name and its text: "" the last reply, "code" its last code block, "code 2" the second, "all" all turns.

    Raises:
        SettingError: There is no such thing.
    """
    if what == "all":
        turns: list[str] = []
        for exchange in chat.exchanges:
            turns.append(f"## you\n\n{exchange.said}")
            if exchange.reply is not None:
                turns.append(f"## model\n\n{answer(exchange.reply)}")
        if turns:
            return "the conversation", "\n\n".join(turns)
    elif (kind := what.partition(" "))[0] == "code" or what in ("", "reply"):
        reply = chat.last.reply if chat.last is not None else None
        live = "".join(r.text for r in chat.reply.rounds) if chat.reply is not None else ""
        text = live or (answer(reply) if reply is not None else "")
        if text and kind[0] != "code":
            return "the reply so far" if live else "the reply", text
        if text:
            return _block(code_blocks(text), kind[2].strip())
    else:
        raise SettingError(f"/copy does not know {what!r}.", "Write /copy, /copy code, /copy code 2 or /copy all.")
    raise SettingError("There is nothing to copy yet.", "Write a message first.")


def source_of(chat: Chat, shown: str) -> str:
    """The code that is shown so, as it was written: with its tabs."""
    live = "".join(r.text for r in chat.reply.rounds) if chat.reply is not None else ""
    texts = [live, *(e.reply.text for e in reversed(chat.exchanges) if e.reply is not None)]
    return next((code for text in texts for code in code_blocks(text) if clean(code) == shown), shown)


def _block(blocks: list[str], number: str) -> tuple[str, str]:
    """The last block, or the one of that number."""
    if not blocks:
        raise SettingError("There is no code block in the last reply.", "/copy copies the reply.")
    if not number:
        return "the last code block", blocks[-1]
    if not number.isdecimal() or not 1 <= int(number) <= len(blocks):
        raise SettingError(f"There is no code block {number}.", f"Use 1 to {len(blocks)}.")
    return f"code block {number}", blocks[int(number) - 1]


def code_blocks(text: str) -> list[str]:
    """The texts of the fenced blocks, without their last newline."""
    return [match[2].rstrip("\n") for match in _FENCE.finditer(text)]
