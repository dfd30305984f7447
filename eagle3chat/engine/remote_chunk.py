"""One event of a server's stream, of chat or completions: text, thinking, counts, the end. Knows no HTTP.

Format: OpenAI's API reference, "chat.completion.chunk" and "text_completion", with what servers add.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from eagle3chat.engine.errors import ServerError
from eagle3chat.engine.events import Prefill, Told
from eagle3chat.engine.remote_json import Json, count, inner, items, text
from eagle3chat.engine.remote_speculation import told_by

DONE = "[DONE]"
MOST_WORDS = 300  # characters of a server's own message


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one event says."""

    text: str
    thought: str
    tokens: int | None  # of this event; None: not told
    finish: str  # finish_reason as the server spells it; empty: it goes on
    stop: str  # what ended it, where that is told
    told: Told
    prefill: Prefill | None


def read_chunk(data: str) -> Chunk:
    """The chunk in an event's data.

    Raises:
        ServerError: It is no JSON object, or the server tells of an error.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ServerError("The server sent an event that is not JSON.", "What came before is kept.") from error
    if not isinstance(value, dict):
        raise ServerError("The server sent an event that is no object.", "What came before is kept.")
    if value.get("error") or value.get("object") == "error":
        raise ServerError(f"The server ended the reply with an error: {error_words(value)}.")
    choice = next((c for c in items(value, "choices") if isinstance(c, dict)), {})
    delta = inner(choice, "delta")
    ids = items(choice, "token_ids")
    return Chunk(
        text=text(delta, "content") or text(choice, "text"),
        thought=text(delta, "reasoning", "reasoning_content"),
        tokens=len(ids) if ids else None,
        finish=text(choice, "finish_reason"),
        stop=text(choice, "stop_reason", "matched_stop"),
        told=told_by(value),
        prefill=_progress(inner(value, "prompt_progress")),
    )


def error_words(value: Json, status: int = 0) -> str:
    """The server's own words for an error, on one line, without the full stop at their end.

    Args:
        status: Is told anyway.
    """
    error = value.get("error")
    words = error if isinstance(error, str) else text(inner(value, "error"), "message") or text(value, "message")
    detail = value.get("detail")
    if not words and detail:
        words = detail if isinstance(detail, str) else json.dumps(detail)
    code = inner(value, "error").get("code")
    if isinstance(code, int) and code != status and str(code) not in words:
        words = f"status {code}, {words}" if words else f"status {code}"
    return one_line(words or "without a word")


def one_line(words: str) -> str:
    """The words on one line, cut where they are long."""
    line = " ".join(words.split())
    return (line if len(line) <= MOST_WORDS else line[:MOST_WORDS] + "...").rstrip(".")


def keepalive(comment: str) -> Prefill | None:
    """The prompt's progress in a comment such as `keepalive 512/2048`, if it holds any."""
    word, _, rest = comment.partition(" ")
    done, _, total = rest.partition("/")
    if word != "keepalive" or not (done.isdecimal() and total.isdecimal()):
        return None
    return Prefill(min(int(done), int(total)), int(total), 0)


def _progress(value: Json) -> Prefill | None:
    total, done = count(value, "total"), count(value, "processed")
    if total is None or done is None:
        return None
    return Prefill(min(done, total), total, min(count(value, "cache") or 0, total))
