"""A request for a reply in a server's own words, and what of it the server will not do. Knows no HTTP.

Every sampling value is sent, since servers differ in what they take where one is missing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle3chat.engine.errors import ServerError
from eagle3chat.engine.remote_dialect import Dialect
from eagle3chat.engine.requests import Message, Say
from eagle3chat.engine.sampling import Sampling
from eagle3chat.templates.base import Template

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
_THINKING = re.compile(r"\s*<think>.*?(?:</think>\s*|\Z)", re.DOTALL)

OFF = Sampling()
FIXES = {
    "min_p": "/minp 0 (--min-p 0) turns it off",
    "top_k": "/topk 0 (--top-k 0) turns it off",
    "top_p": "/topp 1 (--top-p 1) turns it off",
    "presence_penalty": "/penalty presence 0 turns it off",
    "frequency_penalty": "/penalty frequency 0 turns it off",
    "repetition_penalty": "/penalty repetition 1 turns it off",
    "repeat_penalty": "/penalty repetition 1 turns it off",
    "seed": "/seed sets a smaller one",
}
"""What to do when the server does not like a field."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is posted."""

    path: str
    body: Mapping[str, Any]
    idle: frozenset[str]  # fields that may be left out where the server refuses them: nothing changes but their telling
    notes: tuple[str, ...]


def request_for(
    say: Say, model: str, dialect: Dialect, stops: Sequence[str], template: Template | None, left_out: frozenset[str]
) -> Request:
    """The request for a reply.

    Args:
        stops: Strings that end the reply.
        template: Renders the conversation; None: the server does.
        left_out: Fields that the server refused before; one that is on by now is sent all the same.

    Raises:
        ServerError: The server cannot do it.
        TemplateError: The template has no place for a message.
    """
    sampling = say.controls.sampling
    values, idle = _sampling(sampling, dialect)
    body: dict[str, Any] = {"model": model, "stream": True, **dict(dialect.extras), **values}
    limit = say.max_new_tokens or dialect.limit
    if limit is not None:
        body["max_tokens"] = limit
    if stops:
        body["stop"] = list(stops)
    if say.raw:
        path, body["prompt"] = TEXT, say.messages[-1].content
    elif template is not None:
        path, body["prompt"] = TEXT, rendered(say.messages, template)
        ends = [*stops, *(stop for stop in template.stop_tokens if stop not in stops)][:4]  # OpenAI allows four
        body |= {"stop": ends} if ends else {}
    else:
        path, body["messages"] = CHAT, _messages(say.messages)
        body |= _go_on(say.messages, dialect)
    idle |= {name for name, _ in dialect.extras}
    return Request(
        path,
        {name: value for name, value in body.items() if name not in left_out & idle},
        frozenset(idle),
        tuple(_notes(sampling, dialect)),
    )


def _sampling(sampling: Sampling, dialect: Dialect) -> tuple[dict[str, Any], set[str]]:
    """All values by the server's names, and which of them are off."""
    values = {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k or dialect.no_top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        dialect.repetition: sampling.repetition,
        "presence_penalty": sampling.presence,
        "frequency_penalty": sampling.frequency,
        "seed": _seed(sampling, dialect),
    }
    off = {"top_k": dialect.no_top_k, "top_p": 1.0, "min_p": 0.0, dialect.repetition: 1.0}
    off |= {"presence_penalty": 0.0, "frequency_penalty": 0.0}
    return values, {name for name, value in off.items() if values[name] == value}


def _seed(sampling: Sampling, dialect: Dialect) -> int:
    return sampling.seed if sampling.seed <= dialect.most_seed else sampling.seed % (dialect.most_seed + 1)


def _notes(sampling: Sampling, dialect: Dialect) -> list[str]:
    """What the server will not do as asked."""
    notes = [f"{why}." for name, why in dialect.ignores if getattr(sampling, name) != getattr(OFF, name)]
    if (sent := _seed(sampling, dialect)) != sampling.seed:
        notes.append(f"{dialect.name} takes no seed above {dialect.most_seed}: {sent} was sent.")
    return notes


def _messages(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": m.role, "content": answered(m) if m.role == "assistant" else m.content} for m in messages]


def answered(message: Message) -> str:
    """A reply without the thinking before it, which is not sent back."""
    return _THINKING.sub("", message.content, count=1) if _THINKING.match(message.content) else message.content


def _go_on(messages: Sequence[Message], dialect: Dialect) -> dict[str, bool]:
    last = messages[-1]
    if last.role != "assistant":
        return {}
    if not dialect.go_on:
        raise ServerError(f"{dialect.name} cannot go on with a reply.", "/again asks anew; --raw-template can go on.")
    if not answered(last):
        raise ServerError("A reply that was stopped while it was thinking cannot go on.", "/again asks anew.")
    return dict(dialect.go_on)


def rendered(messages: Sequence[Message], template: Template) -> str:
    """The prompt as text. The server reads control tokens that a message spells as control tokens.

    Raises:
        TemplateError: The template has no place for a message.
    """
    *before, last = [Message(m.role, m.content) for m in messages]  # ids of another model mean nothing here
    if last.role != "assistant":
        return "".join(piece.text for piece in template.render([*before, last]))
    return "".join(piece.text for piece in template.render(before)) + last.content
