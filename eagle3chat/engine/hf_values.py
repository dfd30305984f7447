"""Reading values out of a config.json, with errors that name the file and the key. Knows no model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from eagle3chat.engine.errors import BundleError, CheckpointError
from eagle3chat.engine.safe_json import parse_json
from eagle3chat.engine.small_files import read_small

Config = Mapping[str, Any]
MOST_BYTES = 256 << 20  # a tokenizer.json of a large vocabulary has 40 MiB
OTHER = "Use another checkpoint."


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        BundleError: The file is missing or holds something else.
    """
    try:
        value = parse_json(read_small(path, MOST_BYTES))
    except OSError as error:
        raise BundleError(str(path), f"cannot be read ({error.strerror or error})", "Check the path.") from error
    except ValueError as error:
        raise BundleError(str(path), "is not JSON", "Download the file again.") from error
    if not isinstance(value, dict):
        raise BundleError(str(path), "is not a JSON object", "Download the file again.")
    return value


def whole(config: Config, key: str, where: str, default: int | None = None, least: int = 1) -> int:
    """A whole number of at least `least` of a config.

    Raises:
        CheckpointError: It is missing without a default, or is something else. `where` names the file.
    """
    value = config.get(key)
    if value is None and default is not None:
        return default
    if type(value) is not int or value < least:
        raise CheckpointError(
            f"{where}: {key} is {value!r}, not a whole number above {least - 1}.", "Correct the file."
        )
    return value


def number(config: Config, key: str, where: str, default: float | None = None) -> float:
    """A number above 0 of a config; raises as `whole` does."""
    value = config.get(key)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise CheckpointError(f"{where}: {key} is {value!r}, not a number above 0.", "Correct the file.")
    return float(value)


def flag(config: Config, key: str, where: str, default: bool = False) -> bool:
    """A true or false of a config; raises as `whole` does."""
    value = config.get(key, default)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise CheckpointError(f"{where}: {key} is {value!r}, not true or false.", "Correct the file.")
    return value


def check_plain(config: Config, plain: Mapping[str, Collection[Any]], where: str) -> None:
    """Refuse keys that change the numbers and have a value that is not among their `plain` ones; null is.

    Raises:
        CheckpointError: Names the key.
    """
    for key, values in plain.items():
        value = config.get(key)
        if value is not None and not any(value == known for known in values):
            raise CheckpointError(f"{where}: {key} {value!r} is not known here.", OTHER)
