"""bundle.json: `Manifest` to JSON and back, checked key by key.

Unknown keys at the top are kept in `Manifest.extra`; unknown keys further down are refused, because a flag
of a target or draft that is not understood would change the numbers. Knows no other file of a bundle.
"""

from __future__ import annotations

import dataclasses
import json
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from eagle3chat.engine.config import FORMAT_VERSION, Manifest
from eagle3chat.engine.errors import BundleError
from eagle3chat.engine.safe_json import brief, parse_json
from eagle3chat.engine.small_files import read_small

MANIFEST_FILE = "bundle.json"
MOST_BYTES = 16 << 20
LARGEST = 1 << 53  # of a whole number
AGAIN = "Make the bundle again with `eagle3chat export`."


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write bundle.json into the bundle directory `path`."""
    values = dataclasses.asdict(manifest)
    extra = values.pop("extra")
    (path / MANIFEST_FILE).write_text(json.dumps(extra | values, indent=2) + "\n", encoding="utf-8")


def read_manifest(path: Path) -> Manifest:
    """Read bundle.json of the bundle directory `path`.

    Raises:
        BundleError: It is missing, is not JSON, has another format version, or a key is missing or of the
            wrong type.
    """
    file = path / MANIFEST_FILE
    try:
        values = parse_json(read_small(file, MOST_BYTES))
    except OSError as error:
        what = f"cannot be read ({error.strerror or error})"
        raise BundleError(str(file), what, "Give a directory made by `eagle3chat export`.") from error
    except ValueError as error:
        raise BundleError(str(file), "is not JSON", AGAIN) from error
    if not isinstance(values, dict):
        raise BundleError(str(file), "is not a JSON object", AGAIN)
    version = values.get("format_version")
    if version != FORMAT_VERSION:
        raise BundleError(
            str(file), f"has the format version {brief(version)}; this program reads {FORMAT_VERSION}", AGAIN
        )
    known = {field.name for field in dataclasses.fields(Manifest)} - {"extra"}
    extra = {key: value for key, value in values.items() if key not in known}
    try:
        manifest: Manifest = _build(Manifest, {k: v for k, v in values.items() if k in known}, "")
    except _MalformedError as error:
        raise BundleError(str(file), str(error), AGAIN) from error
    return dataclasses.replace(manifest, extra=extra)


class _MalformedError(Exception):
    """A clause about a key of the manifest."""


def _build(cls: Any, values: Any, where: str) -> Any:
    if not isinstance(values, dict):
        raise _MalformedError(f"{where.rstrip('.')} is not an object")
    hints = get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for key in values:
        if key not in fields:
            raise _MalformedError(f"{where}{key} is not known to this version")
    kwargs = {}
    for name, field in fields.items():
        if name in values:
            kwargs[name] = _value(hints[name], values[name], f"{where}{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise _MalformedError(f"{where}{name} is missing")
    return cls(**kwargs)


def _value(hint: Any, value: Any, where: str) -> Any:
    """The value as the type `hint` asks, or _MalformedError."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return None if value is None else _value(args[0], value, where)
    if dataclasses.is_dataclass(hint):
        return _build(hint, value, f"{where}.")
    if origin is Literal and value in args:
        return value
    if origin is tuple and isinstance(value, list):
        if args[-1] is Ellipsis:
            return tuple(_value(args[0], v, f"{where}[{i}]") for i, v in enumerate(value))
        if len(args) == len(value):
            return tuple(_value(a, v, f"{where}[{i}]") for i, (a, v) in enumerate(zip(args, value, strict=True)))
    if hint is float and type(value) in (int, float) and abs(value) < LARGEST:  # false for NaN
        return float(value)
    if hint in (int, str, bool) and type(value) is hint and (hint is str or abs(value) < LARGEST):
        return value
    if origin is dict and isinstance(value, dict):
        return value
    raise _MalformedError(f"{where} has the value {brief(value)}, which it cannot have")
