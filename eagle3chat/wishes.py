"""What a person asked for: flags over the settings file, as the engine's request values.

None stays None where the bundle decides. Knows the parser's names, and no engine beyond its values.
"""

from __future__ import annotations

import argparse
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3chat.engine.errors import SettingError
from eagle3chat.engine.requests import Controls, Message, PairOptions
from eagle3chat.engine.sampling import Sampling
from eagle3chat.settings import Settings, load_settings

AUTO = "auto"  # of a chain


@dataclass(frozen=True, slots=True)
class Wishes:
    """Flags and settings, merged and checked."""

    options: PairOptions  # bundle is "" when the built-in pair is meant
    sampling: Sampling
    chain: int | None
    auto: bool  # the chain finds its own length: asked for, or nothing was
    max_new_tokens: int | None
    system: str | None
    settings: Settings

    @property
    def scripted(self) -> bool:
        """The pair that needs no bundle was asked for."""
        return self.options.backend == "scripted"

    def controls(self, default_chain: int) -> Controls:
        """The controls of a reply on a pair with that default chain."""
        return Controls(default_chain if self.chain is None else self.chain, self.sampling, self.auto)

    def messages(self, prompt: str) -> tuple[Message, ...]:
        """A conversation of one user turn, after the system message if there is one."""
        user = Message("user", prompt)
        return (Message("system", self.system), user) if self.system else (user,)


def flag(args: argparse.Namespace, name: str) -> Any:
    """The value of a flag; None where it was not given or the command does not have it."""
    return getattr(args, name, None)


def read_wishes(args: argparse.Namespace, *, temperature: float = 0.0, max_new_tokens: int | None = None) -> Wishes:
    """Merge flags and settings file.

    Args:
        args: Parsed flags.
        temperature: Used when neither flags nor settings have one.
        max_new_tokens: As above.

    Raises:
        SettingError: A flag or a key is outside its range, or the settings file cannot be read.
    """
    path = flag(args, "settings")
    settings = load_settings(Path(path) if path else None)
    limit = _first(flag(args, "max_new_tokens"), settings.max_new_tokens, max_new_tokens)
    if limit is not None and limit < 1:
        raise SettingError(f"A reply of at most {limit} tokens is empty.", "Use --max-new-tokens 1 or more.")
    asked = _first(flag(args, "chain"), settings.chain)
    chain = None if asked == AUTO else asked
    Controls(chain or 0)  # a negative chain is refused before anything is loaded
    return Wishes(
        options=_options(args, settings),
        sampling=_sampling(args, settings, temperature),
        chain=chain,
        auto=asked == AUTO or (asked is None and flag(args, "backend") != "scripted"),
        max_new_tokens=limit,
        system=_first(flag(args, "system"), settings.system),
        settings=settings,
    )


def _options(args: argparse.Namespace, settings: Settings) -> PairOptions:
    model = _first(flag(args, "model"), settings.model)
    threads = _first(flag(args, "threads"), settings.threads)
    if threads is not None and threads < 1:
        raise SettingError(f"{threads} threads cannot work.", "Use --threads 1 or more.")
    stop_tokens = flag(args, "stop_token")
    return PairOptions(
        bundle=str(Path(os.path.expanduser(model))) if model else "",
        backend=_first(flag(args, "backend"), settings.backend, "auto"),
        device=_first(flag(args, "device"), settings.device, "auto"),
        dtype=_first(flag(args, "dtype"), settings.dtype, "auto"),
        context=flag(args, "context"),
        threads=threads,
        template=_first(flag(args, "template"), settings.template),
        chat_prefix=flag(args, "chat_prefix"),
        chat_suffix=flag(args, "chat_suffix"),
        stop_ids=flag(args, "stop_ids"),
        stop_tokens=None if stop_tokens is None else tuple(token for token in stop_tokens if token),
        stop_strings=tuple(string for string in flag(args, "stop") or () if string),
        bos_id=flag(args, "bos_id"),
        check=bool(flag(args, "check")),
    )


def _sampling(args: argparse.Namespace, settings: Settings, temperature: float) -> Sampling:
    """The sampling; a seed is drawn when none was given, short enough to be typed again."""
    plain = Sampling()
    return Sampling(
        temperature=_first(flag(args, "temperature"), settings.temperature, temperature),
        top_k=_first(flag(args, "top_k"), settings.top_k, plain.top_k),
        top_p=_first(flag(args, "top_p"), settings.top_p, plain.top_p),
        min_p=_first(flag(args, "min_p"), settings.min_p, plain.min_p),
        seed=_first(flag(args, "seed"), secrets.randbits(32)),
        sharpness=_first(flag(args, "sharpness"), plain.sharpness),
        repetition=_first(flag(args, "repetition_penalty"), settings.repetition_penalty, plain.repetition),
        presence=_first(flag(args, "presence_penalty"), settings.presence_penalty, plain.presence),
        frequency=_first(flag(args, "frequency_penalty"), settings.frequency_penalty, plain.frequency),
    )


def _first(*values: Any) -> Any:
    """The first value that is not None."""
    return next((value for value in values if value is not None), None)
