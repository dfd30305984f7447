"""Conversations of token ids: what a draft learns from. Read, deduplicated and split by prompt.

A JSONL line has `prompt` (text) and, of a whole conversation, `reply_ids` (token ids, the stop token included where
the reply ended by itself); `temperature`, `source` and `kind` are optional, and `times`, how often an epoch has it, for
what a draft is weak in. Knows no tensors and no target.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3chat.engine.errors import TrainError

MOST_TIMES = 100
EXAMPLE = 'Each line is an object such as {"prompt": "Why?", "reply_ids": [788, 2]}.'


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a data file. `reply_ids` empty: only a prompt, whose reply is still to be sampled."""

    prompt: str
    reply_ids: tuple[int, ...] = ()
    temperature: float = 0.0  # that the reply was sampled at
    kind: str = ""
    times: int = 1  # in an epoch


@dataclass(frozen=True, slots=True)
class Conversation:
    """One turn in ids: the rendered prompt and the reply to it.

    Args:
        ids: Prompt, then reply.
        start: Where the reply begins; at least 2, since a draft starts two tokens before what it proposes.
        times: How often an epoch has it.
    """

    ids: tuple[int, ...]
    start: int
    temperature: float
    kind: str
    prompt: str
    times: int = 1

    @property
    def key(self) -> str:
        """Names the conversation by what it says."""
        data = ",".join(map(str, self.ids)) + f"|{self.start}"
        return hashlib.sha256(data.encode()).hexdigest()[:16]

    @property
    def reply(self) -> tuple[int, ...]:
        """The reply's ids."""
        return self.ids[self.start :]


def read_lines(path: Path) -> list[Line]:
    """The lines of a JSONL file; empty ones are skipped.

    Raises:
        TrainError: The file cannot be read, or a line is not as it should be; names file and line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TrainError(f"{path} cannot be read ({error}).", "Check the path.") from error
    return [_line(raw, f"{path.name}, line {number}") for number, raw in enumerate(text.splitlines(), 1) if raw.strip()]


def _line(raw: str, where: str) -> Line:
    try:
        entry: Any = json.loads(raw)
    except ValueError as error:
        raise TrainError(f"{where} is not JSON ({error}).", EXAMPLE) from error
    if not isinstance(entry, dict) or not isinstance(entry.get("prompt"), str):
        raise TrainError(f"{where} has no prompt.", EXAMPLE)
    reply = entry.get("reply_ids", [])
    if not isinstance(reply, list) or any(type(i) is not int or i < 0 for i in reply):
        raise TrainError(f"{where}: reply_ids are not token ids.", EXAMPLE)
    temperature = entry.get("temperature", 0.0)
    if type(temperature) not in (int, float):
        raise TrainError(f"{where}: temperature is not a number.", EXAMPLE)
    times = entry.get("times", 1)
    if type(times) is not int or not 1 <= times <= MOST_TIMES:
        raise TrainError(f"{where}: times is not a number from 1 to {MOST_TIMES}.", EXAMPLE)
    kind = entry.get("kind") or entry.get("source") or ""
    return Line(entry["prompt"], tuple(reply), float(temperature), str(kind), times)


def conversations(
    lines: Iterable[Line], prompt_ids: Callable[[str], Sequence[int]], vocab_size: int, longest: int
) -> list[Conversation]:
    """Whole conversations of the lines that have a reply, each once, cut to `longest` tokens.

    Args:
        prompt_ids: Renders a prompt as the target's chat template has it.
        vocab_size: Of the target.

    Raises:
        TrainError: A reply has ids that the target does not know: it was written by another one.
    """
    found: dict[tuple[tuple[int, ...], int], Conversation] = {}
    for line in lines:
        if not line.reply_ids:
            continue
        if max(line.reply_ids) >= vocab_size:
            what = f"The reply to {line.prompt[:40]!r} has the token {max(line.reply_ids)}, and the target knows"
            raise TrainError(f"{what} {vocab_size}.", "Use conversations of this target.")
        head = tuple(prompt_ids(line.prompt))
        ids = (head + line.reply_ids)[:longest]
        if len(head) >= 2 and len(ids) > len(head):
            made = Conversation(ids, len(head), line.temperature, line.kind, line.prompt, line.times)
            found.setdefault((ids, len(head)), made)
    return list(found.values())


def split(conversations: Sequence[Conversation], share: float) -> tuple[list[Conversation], list[Conversation]]:
    """What to train on, and what is held out: about `share` of the prompts, chosen by their text alone.

    All conversations of one prompt fall on one side, and a prompt falls on the same side whatever else there is.
    """
    held = [_place(conversation.prompt) < share for conversation in conversations]
    return (
        [c for c, out in zip(conversations, held, strict=True) if not out],
        [c for c, out in zip(conversations, held, strict=True) if out],
    )


def _place(prompt: str) -> float:
    """0..1, even over prompts; case and spaces do not count."""
    plain = " ".join(prompt.lower().split())
    return int.from_bytes(hashlib.sha256(plain.encode()).digest()[:6], "big") / 2**48
