"""Chat templates in Jinja, as models bring them: rendered in Jinja's sandbox, with messages kept apart from template.

Each message is rendered as an unguessable mark; the output is cut at the marks, and the messages are put in their
places. So no message is ever template source, none can name a control token, and replies can be spliced in as ids.
White space around each mark tells whether the template strips messages. A template that looks into messages for
switches (`/no_think`) or thoughts finds none.

The environment (block trimming, loop controls, `generation` blocks, `raise_exception`, `strftime_now`, `tojson`)
is the one that Hugging Face's chat templates are written for.
"""

from __future__ import annotations

import datetime
import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from eagle3chat.engine.errors import TemplateError
from eagle3chat.engine.requests import Message, Piece
from eagle3chat.engine.safe_json import parse_json
from eagle3chat.engine.small_files import read_small
from eagle3chat.templates.base import joined
from eagle3chat.templates.sandbox import LimitedEnvironment, guarded, limited_time

MAX_CONFIG = 16 << 20
"""Bytes of a tokenizer_config.json."""

MAX_CHARACTERS = 1_000_000
"""What a template may write of its own; messages do not count."""

_EM_SPACE = "\u2003"  # white space that no template writes itself
_LINES = "\n" * 7  # more than a template writes itself
_FIX = "Name a built-in template with --template: gemma4, chatml or llama3."
_SYSTEM_FIX = "Leave the system text out, or put it into the first message."
_END_OF_TURN = re.compile(r"\s*(<[^<>\s]+>)")  # `<|im_end|>`, `</s>`, `<turn|>`


class JinjaTemplate:
    """A template in Jinja. A conversation's messages each appear once, whatever their order.

    Args:
        source: The template's text.
        name: As shown.
        special_tokens: Names that the template may ask for (`bos_token`, ...).

    Raises:
        TemplateError: The source is not Jinja, or does not render a single message.
    """

    def __init__(self, source: str, *, name: str, special_tokens: Mapping[str, str]) -> None:
        self.name = name
        self._special_tokens = {"bos_token": "", "eos_token": "", **special_tokens}
        try:
            self._template = _environment().from_string(source)
        except (jinja2.TemplateError, SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
            raise TemplateError(f"The chat template {name} is not Jinja: {_words(error)}.", _FIX) from error
        self.render([Message("user", "")])  # at the door rather than at the first message
        self.stop_tokens: tuple[str, ...] = self._find_stop_tokens()

    def render(self, messages: Sequence[Message], *, start_reply: bool = True) -> list[Piece]:
        """See `Template.render`."""
        places = self._places(messages, start_reply)
        starts = [place.before for place in places[:-1]]
        end = places[-1].before
        for index, place in enumerate(places[:-1]):
            # The history may leave out what started the reply (an empty thought): restore what the target saw.
            written = place.message is not None and place.message.token_ids is not None
            if written and start_reply and end.startswith(starts[index]):
                starts[index] = end
        return joined(_pieces(places, [*starts, end]))

    def _places(self, messages: Sequence[Message], start_reply: bool) -> list[_Place]:
        """Each message with the template's text before it, in order of the output; then the text after all."""
        marks = [f"x{secrets.token_hex(16)}x" for _ in messages]
        rows = [
            (message.role, f"{_LINES}{_EM_SPACE}{mark}{_EM_SPACE}{_LINES}")
            for message, mark in zip(messages, marks, strict=True)
        ]
        text = self._run(rows, start_reply)
        for message, mark in zip(messages, marks, strict=True):
            if text.count(mark) != 1:
                self._refuse(message, text.count(mark))
        order = sorted(zip(marks, messages, strict=True), key=lambda pair: text.index(pair[0]))
        places: list[_Place] = []
        for mark, message in order:
            before, strip_left = _cut_left_pad(text.partition(mark)[0])
            text, strip_right = _cut_right_pad(text.partition(mark)[2])
            places.append(_Place(before, message, strip_right(strip_left(message.content))))
        return [*places, _Place(text, None, "")]

    def _run(self, rows: Sequence[tuple[str, str]], start_reply: bool) -> str:
        """The template's output for messages of (role, content).

        Raises:
            TemplateError: It refuses, fails, or writes too much.
        """
        variables = {
            "messages": [{"role": role, "content": content} for role, content in rows],
            "add_generation_prompt": start_reply,
            "tools": None,
            "documents": None,
        }
        chunks: list[str] = []
        size = 0
        try:
            with limited_time():
                for chunk in self._template.generate(self._special_tokens, **variables):
                    chunks.append(chunk)
                    size += len(chunk)
                    if size > MAX_CHARACTERS:
                        raise TemplateError(f"The chat template {self.name} writes without end.", _FIX)
        except TemplateError:
            raise
        except Exception as error:  # a template is a program: it can raise anything
            fix = _SYSTEM_FIX if any(role == "system" for role, _ in rows) else _FIX
            raise TemplateError(f"The chat template {self.name} does not render: {_words(error)}.", fix) from error
        return "".join(chunks)

    def _refuse(self, message: Message, count: int) -> NoReturn:
        if message.role == "system" and count == 0:
            raise TemplateError(f"The chat template {self.name} has no place for a system text.", _SYSTEM_FIX)
        what = "leaves out or changes" if count == 0 else "repeats"
        raise TemplateError(f"The chat template {self.name} {what} the text of a {message.role} message.", _FIX)

    def _find_stop_tokens(self) -> tuple[str, ...]:
        """What the template writes after a reply, and the end-of-text token."""
        try:
            places = self._places([Message("user", ""), Message("assistant", ""), Message("user", "")], False)
        except TemplateError:  # a template for single turns; it says so when it is asked for more
            end = ""
        else:
            match = _END_OF_TURN.match(places[2].before)
            end = match.group(1) if match else ""
        return tuple(dict.fromkeys(token for token in (end, self._special_tokens["eos_token"]) if token))


@dataclass(frozen=True, slots=True)
class _Place:
    """A message in the output; None: the end."""

    before: str  # the template's text between the message before and this one
    message: Message | None
    content: str  # stripped as the template does


def _pieces(places: Sequence[_Place], texts: Sequence[str]) -> Iterator[Piece]:
    for place, text in zip(places, texts, strict=True):
        yield Piece("template", text)
        if place.message is not None and place.message.token_ids is not None:
            yield Piece("ids", ids=place.message.token_ids)
        else:
            yield Piece("content", place.content)


Strip = Callable[[str], str]


def _unchanged(text: str) -> str:
    return text


def _cut_left_pad(text: str) -> tuple[str, Strip]:
    """Without the pad that ends it, and how the template strips the left of a message."""
    if not text.endswith(_EM_SPACE):
        return text, str.lstrip
    text = text.removesuffix(_EM_SPACE)
    if text.endswith(_LINES):
        return text.removesuffix(_LINES), _unchanged
    return text, lambda content: content.lstrip("\n")


def _cut_right_pad(text: str) -> tuple[str, Strip]:
    """Without the pad that starts it, and how the template strips the right of a message."""
    if not text.startswith(_EM_SPACE):
        return text, str.rstrip
    text = text.removeprefix(_EM_SPACE)
    if text.startswith(_LINES):
        return text.removeprefix(_LINES), _unchanged
    return text, lambda content: content.rstrip("\n")


def read_special_tokens(config: Path | None) -> dict[str, str]:
    """The `..._token` entries of a tokenizer_config.json; nothing where there is no file.

    Raises:
        TemplateError: The file is not a JSON object.
    """
    if config is None or not config.is_file():
        return {}
    try:
        table = parse_json(read_small(config, MAX_CONFIG))
    except OSError as error:
        raise TemplateError(f"{config} cannot be read: {error.strerror}.", "Make the bundle again.") from error
    except ValueError as error:
        raise TemplateError(f"{config} is not JSON: {error}.", "Make the bundle again.") from error
    if not isinstance(table, dict):
        raise TemplateError(f"{config} is not a JSON object.", "Make the bundle again.")
    names = {key: value.get("content") if isinstance(value, dict) else value for key, value in table.items()}
    return {key: name for key, name in names.items() if key.endswith("_token") and isinstance(name, str)}


class _Generation(Extension):
    """`{% generation %}` marks what a model is trained on; here it only stands around its body."""

    tags = frozenset({"generation"})  # type: ignore[assignment]

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> LimitedEnvironment:
    environment = LimitedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    environment.filters["tojson"] = guarded("tojson", _to_json)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)  # Jinja's own would escape for HTML


def _words(error: Exception) -> str:
    """An error in one line, without the full stop."""
    line = f"line {error.lineno}: " if isinstance(error, jinja2.TemplateSyntaxError) else ""
    return (line + (" ".join(str(error).split()) or type(error).__name__)).rstrip(".")
