"""Values of a server's JSON, each of the type that was hoped for or None: servers leave out, rename and null.

Knows JSON alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Json = Mapping[str, Any]
EMPTY: Json = {}


def inner(value: Any, *names: str) -> Json:
    """The object under a path of names; empty where there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else EMPTY


def items(value: Json, name: str) -> Sequence[Any]:
    """The array under a name; empty where there is none."""
    found = value.get(name)
    return found if isinstance(found, list) else ()


def text(value: Json, *names: str) -> str:
    """The first string under one of the names that is not empty; empty where there is none."""
    return next((found for name in names if isinstance(found := value.get(name), str) and found), "")


def count(value: Json, *names: str) -> int | None:
    """The first whole number, 0 or more, under one of the names."""
    found = number(value, *names)
    return None if found is None or found < 0 or found != int(found) else int(found)


def number(value: Json, *names: str) -> float | None:
    """The first finite number under one of the names."""
    for name in names:
        found = value.get(name)
        if isinstance(found, int | float) and not isinstance(found, bool) and abs(found) < float("inf"):
            return float(found)
    return None


def counts(value: Json, *names: str) -> tuple[int, ...] | None:
    """The first array of whole numbers, or object of place and number, under one of the names."""
    for name in names:
        found = value.get(name)
        if isinstance(found, Mapping):  # an early revision of a server: only places that are not 0
            places = {int(place): n for place, n in found.items() if str(place).isdecimal()}
            found = [places.get(place, 0) for place in range(max(places, default=-1) + 1)]
        if isinstance(found, list) and all(type(n) is int and n >= 0 for n in found):
            return tuple(found)
    return None
