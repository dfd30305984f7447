"""The values of a transcript and how each becomes one JSON object and back.

A transcript is read as a `Conversation`. Its records are objects with a "type" and, last, the "turn"
(user messages so far): header, message, rounds, reply, settings, setup, pair, title,
note, change, continue. Rounds are kept in columns: one
array a field of `Round`, one entry a round, and each token as [id, text, draft_p, target_p], so that they can
be shown again without a tokenizer. Knows no files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from itertools import islice
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from eagle3chat.engine.errors import SettingError
from eagle3chat.engine.events import Finished, Info, Round, Token
from eagle3chat.engine.requests import Controls

FORMAT = 1
Record = dict[str, Any]  # one line of the file
Damaged = (KeyError, TypeError, ValueError, OverflowError, RecursionError, SettingError)
"""What reading a damaged record may raise."""

_JSON = frozenset((int, float, str, bool, NoneType))  # as they are
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PairName:
    """The pair that wrote a reply, as far as a transcript needs it."""

    model: str = ""
    draft: str = ""
    family: str = ""
    backend: str = ""
    device: str = ""
    dtype: str = ""
    template: str = ""
    bundle: str = ""  # the directory it was opened from

    @classmethod
    def of(cls, info: Info, bundle: str = "") -> PairName:
        """The name of an open pair."""
        same = {f.name: getattr(info, f.name) for f in fields(cls) if f.name != "bundle"}
        return cls(**same, bundle=bundle)


@dataclass(frozen=True, slots=True)
class Header:
    """The first record: what was known when the conversation began."""

    id: str
    created: str  # ISO 8601, UTC
    version: str = ""  # of eagle3chat
    pair: PairName = field(default_factory=PairName)
    controls: Controls = field(default_factory=Controls)  # chain, sampling and seed at the start


@dataclass(frozen=True, slots=True)
class Said:
    """A message of the user, or the system message."""

    role: Literal["system", "user"]
    text: str
    at: str = ""  # ISO 8601, UTC


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply with its rounds. Without `finished` it is partial: what its rounds say is all there is."""

    text: str
    token_ids: tuple[int, ...]  # without the stop token that ended it
    rounds: tuple[Round, ...]
    finished: Finished | None
    controls: Controls
    pair: PairName
    at: str = ""  # of its end


@dataclass(frozen=True, slots=True)
class Note:
    """Something that happened beside the messages: the worker died, the model was changed."""

    kind: str
    text: str
    at: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """Something was changed in the conversation; see `transcript_line`.

    "back": the first `value` messages of the user stay with their replies, and nothing after them.
    "choose": of the replies to the last message the one at place `value` (from 0) counts.
    "undo": the conversation is again what it was before the last "back" that was not undone; `value` says nothing.
    """

    kind: Literal["back", "choose", "undo"]
    value: int
    at: str = ""


Turn = Said | Reply | Note | Change


@dataclass(frozen=True, slots=True)
class Setup:
    """What a person set for the conversation beside the controls."""

    max_new_tokens: int | None = None  # of a reply; None: to the end of the context
    template: str | None = None  # a built-in name or a file; None: what the bundle says


@dataclass(frozen=True, slots=True)
class Conversation:
    """A transcript as it was read."""

    header: Header
    turns: tuple[Turn, ...]
    pair: PairName  # in use at the end
    controls: Controls  # in force at the end
    skipped: int  # damaged lines that were left out
    title: str = ""  # as a person named it; empty: nobody did
    setup: Setup | None = None  # in force at the end; None: never set

    @property
    def system(self) -> str:
        """The system message in force at the end; empty: none."""
        return next((t.text for t in reversed(self.turns) if isinstance(t, Said) and t.role == "system"), "")

    @property
    def user_turns(self) -> int:
        """How many messages the user sent."""
        return sum(isinstance(t, Said) and t.role == "user" for t in self.turns)


def reply_ids(rounds: Sequence[Round], finished: Finished | None) -> tuple[int, ...]:
    """The token ids of a reply, without the stop token that ended it."""
    tokens = [token for r in rounds for token in r.tokens]
    if finished is not None and finished.reason == "stop" and tokens and tokens[-1].text == finished.stop:
        tokens.pop()
    return tuple(token.id for token in tokens)


def reply_text(rounds: Sequence[Round], finished: Finished | None) -> str:
    """The text of a reply."""
    return "".join(r.text for r in rounds) + ("" if finished is None else finished.text)


def encode(record: Record) -> bytes:
    """One line. ASCII only: control codes of model text do not reach a terminal that shows the file."""
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Record:
    """The record on a line; NUL bytes around it (a file system's gap after a power cut) are dropped.

    Raises:
        ValueError: The line is not a JSON object.
    """
    record = json.loads(line.strip(b"\0 \t\r\n"))
    if not isinstance(record, dict):
        raise ValueError("not an object")
    return record


def pack_rounds(rounds: Sequence[Round]) -> Record:
    """Rounds as columns. A column that holds nothing but its field's default is left out."""
    columns = {f.name: list(map(plain, map(attrgetter(f.name), rounds))) for f in fields(Round)}
    defaults = {f.name: f.default for f in fields(Round) if f.default is not MISSING}
    return {k: v for k, v in columns.items() if k not in defaults or any(x != defaults[k] for x in v)}


def unpack_rounds(record: Record) -> tuple[Round, ...]:
    """The rounds of a record.

    Raises:
        KeyError, TypeError, ValueError: The record is damaged.
    """
    hints = _hints(Round)
    names = [f.name for f in fields(Round) if f.name in record]
    columns = (_column(hints[name], _list(record[name])) for name in names)
    rows = zip(*columns, strict=True)
    if names == list(hints):
        return tuple([Round(*row) for row in rows])
    return tuple([Round(**dict(zip(names, row, strict=True))) for row in rows])


def _column(hint: Any, values: list[Any]) -> list[Any]:
    """The values of a column, revived. A long conversation has half a million of them, so kinds are looked at
    together and tokens have their own way."""
    if hint == tuple[Token, ...]:
        tokens = iter(_tokens([x for value in values for x in _list(value)]))
        return [tuple(islice(tokens, len(value))) for value in values]
    if hint == Token | None:
        tokens = iter(_tokens([value for value in values if value is not None]))
        return [None if value is None else next(tokens) for value in values]
    kinds = set(map(type, values))
    if kinds == {hint} and hint in (int, str, float):
        return values
    if kinds <= {str, NoneType} and set(values) <= _words(hint):
        return values
    return [_revive(hint, value) for value in values]


@cache
def _words(hint: Any) -> frozenset[str | None]:
    """The values of a Literal, and None where that may be."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    words = [word for part in parts if get_origin(part) is Literal for word in get_args(part)]
    return frozenset([*words, None] if words and NoneType in parts else words)


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise ValueError("not an array")
    return value


def _tokens(values: list[Any]) -> list[Token]:
    """Tokens from their arrays."""
    if not set(map(type, values)) <= {list} or set(map(len, values)) != {len(_hints(Token))}:
        return [_token(value) for value in values]
    columns = tuple(zip(*values, strict=True))
    kinds = [set(map(type, column)) for column in columns]
    if kinds[0] == {int} and kinds[1] == {str} and kinds[2] | kinds[3] <= {float, NoneType}:
        return list(map(Token, *columns))
    return [_token(value) for value in values]


def _token(value: Any) -> Token:
    identity, text, draft, target = _list(value)[:4]
    if type(identity) is not int or type(text) is not str:
        raise ValueError("not a token")
    if type(draft) is not float and draft is not None:
        draft = _revive(float, draft)
    if type(target) is not float and target is not None:
        target = _revive(float, target)
    return Token(identity, text, draft, target)


def plain(value: object) -> Any:
    """A frozen value as JSON: dataclasses become objects, tokens and tuples arrays."""
    if type(value) in _JSON:
        return value
    if isinstance(value, Token):
        return [value.id, value.text, value.draft_p, value.target_p]
    if isinstance(value, tuple):
        return [plain(x) for x in value]
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    return value


def revive(kind: type[T], value: Any) -> T:
    """A frozen value from its JSON: the inverse of `plain`. Unknown keys are ignored.

    Raises:
        TypeError, ValueError: The JSON does not fit the type.
    """
    result: T = _revive(kind, value)
    return result


def _revive(hint: Any, value: Any) -> Any:
    if hint is float and type(value) in (int, float):
        return float(value)
    if hint in (int, str, bool, NoneType):
        if type(value) is hint:
            return value
    elif get_origin(hint) is Literal:
        if value in get_args(hint):
            return value
    elif get_origin(hint) is tuple:
        if isinstance(value, list):
            if get_args(hint)[0] is int and set(map(type, value)) == {int}:
                return tuple(value)
            return tuple(_revive(get_args(hint)[0], x) for x in value)
    elif get_origin(hint) in (Union, UnionType):
        parts = get_args(hint)
        if value is None and NoneType in parts:
            return None
        return _revive(next(p for p in parts if p is not NoneType), value)
    elif isinstance(hint, type) and is_dataclass(hint):
        hints = _hints(hint)
        if hint is Token and isinstance(value, list):
            value = dict(zip(hints, value, strict=False))
        if isinstance(value, dict):
            return hint(**{name: _revive(hints[name], x) for name, x in value.items() if name in hints})
    raise ValueError(f"not a {hint}")


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)  # of a dataclass: its fields, in order
