"""The user's settings file: TOML, every key optional, each checked by name.

    ~/.config/eagle3chat/settings.toml (Linux; elsewhere where platformdirs says)

Flags win over this file, and this file over the bundle. Knows no parser and no engine beyond the ranges of
its values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from eagle3chat.engine.errors import SettingError
from eagle3chat.engine.requests import Controls
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.small_files import read_named, read_small
from eagle3chat.theme_names import THEMES

MARKS = ("full", "subtle", "off")  # how loud the kinds of token are marked in the reply
MOST_BYTES = 1 << 20  # of the file
_DTYPES = ("auto", "float32", "bfloat16", "int4")
_BACKENDS = ("auto", "torch", "mlx", "scripted")


@dataclass(frozen=True, slots=True)
class Settings:
    """What the settings file says; None where it says nothing."""

    model: str | None = None  # a bundle directory
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    chain: int | str | None = None  # or "auto"
    max_new_tokens: int | None = None
    theme: str | None = None  # of the screen
    marks: str | None = None  # how the reply shows the kinds of token
    dtype: str | None = None
    backend: str | None = None
    device: str | None = None
    threads: int | None = None
    template: str | None = None
    system: str | None = None  # the system message of new conversations
    keys: tuple[tuple[str, str], ...] = ()  # of the screen: id of a binding and its keys, from the table [keys]
    mouse: bool | None = None  # the screen takes it, so that a terminal's own selection needs shift
    api_key: str | None = field(default=None, repr=False)  # of a server; never shown


_INTS = ("top_k", "max_new_tokens", "threads")
_FLOATS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
_CHOICES = {"dtype": _DTYPES, "backend": _BACKENDS, "marks": MARKS, "theme": THEMES}


def settings_path() -> Path:
    """Where the settings file is looked for."""
    from platformdirs import user_config_dir

    return Path(user_config_dir("eagle3chat", appauthor=False)) / "settings.toml"


def load_settings(path: Path | None = None) -> Settings:
    """Read a settings file.

    Args:
        path: The file; None: the user's own, which may be absent.

    Raises:
        SettingError: The file that was named is missing or unreadable, is not TOML, or holds an unknown key or
            a value of the wrong type or range. Names the key and the file.
    """
    import tomllib

    where = settings_path() if path is None else path
    try:
        text = read_small(where, MOST_BYTES).decode() if path is None else read_named(where, MOST_BYTES)
    except FileNotFoundError:
        if path is None:
            return Settings()
        raise SettingError(f"The settings file {where} does not exist.", "Check the path after --settings.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(
            f"The settings file {where} cannot be read: {error}.", "Make it a readable UTF-8 file."
        ) from error
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingError(
            f"The settings file {where} is not TOML: {error}.", "Write lines such as chain = 3."
        ) from error
    try:
        return _checked(table, where)
    except RecursionError as error:
        raise SettingError(f"The settings file {where} is nested too deep.", "Change or remove that line.") from error


def _checked(table: dict[str, object], where: Path) -> Settings:
    known = [field.name for field in dataclasses.fields(Settings)]
    values: dict[str, object] = {}
    for key, value in table.items():
        if key not in known:
            raise SettingError(
                f"The settings file {where} has an unknown key, {key}.", f"Known keys: {', '.join(known)}."
            )
        values[key] = _keys(value, where) if key == "keys" else _typed(key, value, where)
    settings = Settings(**values)  # type: ignore[arg-type]  # each value was checked above
    _check_ranges(settings, where)
    return settings


def _keys(value: object, where: Path) -> tuple[tuple[str, str], ...]:
    """The table [keys], whose ids TOML takes apart at their dots; which ids there are is the screen's to know."""

    def flat(table: object, name: str) -> Iterator[tuple[str, str]]:
        if isinstance(table, dict):
            for key, inner in table.items():
                yield from flat(inner, f"{name}.{key}" if name else key)
        elif isinstance(table, str) and name:
            yield name, table
        else:
            raise SettingError(f"The table [keys] in {where} must hold text.", 'Write: chat.copy = "f10"')

    return tuple(flat(value, ""))


def _typed(key: str, value: object, where: Path) -> object:
    if key in _INTS:
        fits, wanted = isinstance(value, int) and not isinstance(value, bool), "a whole number"
    elif key == "chain":
        fits = value == "auto" or (isinstance(value, int) and not isinstance(value, bool))
        wanted = 'a whole number or "auto"'
    elif key == "mouse":
        fits, wanted = isinstance(value, bool), "true or false"
    elif key in _FLOATS:
        fits, wanted = isinstance(value, int | float) and not isinstance(value, bool), "a number"
    elif key in _CHOICES:
        fits, wanted = value in _CHOICES[key], "one of " + ", ".join(_CHOICES[key])
    else:
        fits, wanted = isinstance(value, str), "text in quotes"
    if not fits and key == "api_key":
        raise SettingError(f"The key {key} in {where} must be text in quotes.", "Change or remove that line.")
    if not fits:
        raise SettingError(f"The key {key} in {where} must be {wanted}, not {value!r}.", "Change or remove that line.")
    return float(value) if key in _FLOATS and isinstance(value, int | float) else value


def _check_ranges(settings: Settings, where: Path) -> None:
    try:
        Sampling(
            temperature=settings.temperature or 0.0,
            top_k=settings.top_k or 0,
            top_p=1.0 if settings.top_p is None else settings.top_p,
            min_p=settings.min_p or 0.0,
            repetition=1.0 if settings.repetition_penalty is None else settings.repetition_penalty,
            presence=settings.presence_penalty or 0.0,
            frequency=settings.frequency_penalty or 0.0,
        )
        Controls(chain=settings.chain if isinstance(settings.chain, int) else 0)
    except SettingError as error:
        raise SettingError(f"In {where}: {error.message}", error.fix) from error
    for key, value in (("max_new_tokens", settings.max_new_tokens), ("threads", settings.threads)):
        if value is not None and value < 1:
            raise SettingError(
                f"The key {key} in {where} must be 1 or more, not {value}.", "Change or remove that line."
            )
