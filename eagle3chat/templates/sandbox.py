"""Limits of what a template may do, beyond what Jinja's sandbox forbids: time, and the size of what it makes.

The sandbox keeps a template from the interpreter's insides, not from `9 ** 9 ** 9`, from ten thousand turns of ten
thousand, or from a text that doubles itself. Single operations are looked at before they run, loops and macros by a
trace of their lines. Knows no messages.
"""

from __future__ import annotations

import functools
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, ClassVar

from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

SECONDS = 2.0  # of one rendering; a template takes milliseconds
LARGEST = 1_000_000  # characters or items
LARGEST_ARGUMENT = 100_000  # as a whole number
BITS = 4096  # of a whole number
WIDE = re.compile(r"%[^a-zA-Z%]*(\d{5}|\*)|\{[^{}]*:[^{}]*(\d{5}|\{)")  # formats that ask for a wide field


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox, with limits on operators, calls and filters."""

    intercepted_binops: ClassVar[frozenset[str]] = frozenset({"+", "*", "**", "%"})  # type: ignore[misc]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.filters = {name: guarded(name, work) for name, work in self.filters.items()}

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An operator, unless its result would be large.

        Raises:
            SecurityError: It would.
        """
        _check_operator(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """The sandbox's `str.format`, unless the format asks for a wide field.

        Raises:
            SecurityError: It does.
        """
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and WIDE.search(value.__self__):
            raise SecurityError("it makes a text that is too long")
        return wrapped

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """A call, unless it asks for something large.

        Raises:
            SecurityError: It does.
        """
        owner = getattr(__obj, "__self__", None)
        name = getattr(__obj, "__name__", "")
        _check_call(name, (owner, *args) if isinstance(owner, str) else args, kwargs)
        return _small(super().call(__context, __obj, *args, **kwargs))


@contextmanager
def limited_time(seconds: float | None = None) -> Iterator[None]:
    """Inside, code that takes longer or holds large texts is ended; a trace that is set (a debugger's) stays instead.

    Raises:
        SecurityError: It was.
    """
    if sys.gettrace() is not None:
        yield
        return
    seconds = SECONDS if seconds is None else seconds
    end = time.monotonic() + seconds

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if time.monotonic() > end:
            raise SecurityError(f"it takes more than {seconds:g} s")
        if frame.f_code.co_filename != "<template>":
            return None  # the library's own loops are bounded by the sizes that they are given
        for value in frame.f_locals.values():
            _small(value)
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


def guarded(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that refuses to make something large."""

    @functools.wraps(work)  # what Jinja marked it with, too
    def limited(*args: Any, **kwargs: Any) -> Any:
        _check_call(name, args, kwargs)
        return _small(work(*args, **kwargs))

    return limited


def _check_operator(operator: str, left: Any, right: Any) -> None:
    numbers = isinstance(left, int) and isinstance(right, int)
    if operator == "**" and numbers:
        if right > 0 and left.bit_length() * right > BITS:
            raise SecurityError("it makes a number that is too large")
    elif operator == "*" and numbers:
        if left.bit_length() + right.bit_length() > BITS:
            raise SecurityError("it makes a number that is too large")
    elif operator == "*":
        many, times = (left, right) if hasattr(left, "__len__") else (right, left)
        if hasattr(many, "__len__") and isinstance(times, int) and len(many) * times > LARGEST:
            raise SecurityError("it makes a text that is too long")
    elif operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
        if len(left) + len(right) > LARGEST:
            raise SecurityError("it makes a text that is too long")
    elif operator == "%" and isinstance(left, str) and WIDE.search(left):
        raise SecurityError("it makes a text that is too long")


def _check_call(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, int) and abs(value) > LARGEST_ARGUMENT:
            raise SecurityError(f"it calls {name} with {value if value.bit_length() < 64 else 'a huge number'}")
    texts = [value for value in args if isinstance(value, str)]
    if name in ("format", "format_map") and texts and WIDE.search(texts[0]):
        raise SecurityError("it makes a text that is too long")
    if name == "replace" and len(texts) >= 3:
        text, old, new = texts[:3]
        times = text.count(old) if old else len(text) + 1
        if len(text) + times * len(new) > LARGEST:
            raise SecurityError("it makes a text that is too long")
    if name == "join" and texts:
        items = max((len(value) for value in args if hasattr(value, "__len__")), default=0)
        if max(map(len, texts)) * items > 10 * LARGEST:
            raise SecurityError("it makes a text that is too long")


def _small(value: Any) -> Any:
    """The value, unless it is large.

    Raises:
        SecurityError: It is.
    """
    if isinstance(value, str | list | tuple | dict) and len(value) > LARGEST:
        raise SecurityError("it makes a text that is too long")
    return value
