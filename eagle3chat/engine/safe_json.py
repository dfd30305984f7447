"""JSON from strangers: whatever is wrong with it is a ValueError. Knows no one's contents."""

from __future__ import annotations

import json
from typing import Any


def parse_json(data: bytes | str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: It is not JSON, not UTF-8, or nested deeper than the reader goes.
    """
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def brief(value: object, characters: int = 80) -> str:
    """A value for a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= characters else text[: characters - 1] + "…"
