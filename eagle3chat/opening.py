"""Opening the pair that a person asked for, with its progress on stderr.

Used by the commands that decode in the foreground; the chat takes `bundle_of` alone, since its worker opens
the pair. Knows which pair is built in, not how any is made.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from eagle3chat.engine.errors import SettingError
from eagle3chat.wishes import Wishes

if TYPE_CHECKING:
    from eagle3chat.engine.pair import Pair
    from eagle3chat.engine.requests import Say

STEADY_SECONDS = 0.1  # between two repaints of the percentage


class Progress:
    """Stages of a long job: one line that is rewritten on a terminal, else one line a stage.

    Args:
        stream: Where they go, usually stderr.
        quiet: Say nothing.
    """

    def __init__(self, stream: TextIO, *, quiet: bool = False) -> None:
        self._stream = stream
        self._quiet = quiet
        self._live = not quiet and stream.isatty()
        self._stage = ""
        self._painted = 0.0

    def __call__(self, stage: str, fraction: float | None) -> None:
        """Tell that a stage runs; `fraction` of the whole job is done, None: unknown."""
        now = time.monotonic()
        new = stage != self._stage
        if self._quiet or not (new or (self._live and now - self._painted >= STEADY_SECONDS)):
            return
        self._stage, self._painted = stage, now
        if self._live:
            share = "" if fraction is None else f" {fraction:4.0%}"
            self._stream.write(f"\r\x1b[K{stage}{share}")
        else:
            self._stream.write(f"{stage}\n")
        self._stream.flush()

    def done(self) -> None:
        """Leave the line empty for what comes next."""
        if self._live and self._stage:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
        self._stage = ""


def bundle_of(wishes: Wishes, stream: TextIO, *, quiet: bool = False) -> Wishes:
    """The same wishes with a bundle directory and a chain in them; the built-in pair is made where it is meant.

    Raises:
        BundleError: The built-in pair cannot be made, or the directory is missing, damaged or inconsistent.
        SettingError: The chain is above what the bundle's draft allows.
    """
    if wishes.scripted:
        return wishes
    from eagle3chat.engine.bundle import open_bundle

    bundle = wishes.options.bundle
    if not bundle:
        from eagle3chat.engine.default_pair import default_bundle

        progress = Progress(stream, quiet=quiet)
        try:
            bundle = str(default_bundle(progress=progress))
        finally:
            progress.done()
    manifest = open_bundle(Path(bundle)).manifest  # the door: milliseconds, before anything large is read
    if wishes.chain is not None and wishes.chain > manifest.max_chain:
        longest = manifest.max_chain
        fix = f"Use 0 (plain decoding) to {longest}." if longest else "Use 0: this bundle has no draft."
        raise SettingError(f"A chain of {wishes.chain} tokens is above the maximum.", fix)
    chain = manifest.default_chain if wishes.chain is None else wishes.chain
    auto = wishes.auto and manifest.draft is not None
    return dataclasses.replace(
        wishes, chain=chain, auto=auto, options=dataclasses.replace(wishes.options, bundle=bundle)
    )


def open_wished(wishes: Wishes, stream: TextIO, *, quiet: bool = False, first: Say | None = None) -> Pair:
    """Open the pair in this process; on a terminal the loading is shown.

    Args:
        first: A request whose prompt must fit, or nothing is loaded.

    Raises:
        Eagle3Error: As `bundle_of` and `engine.pair_check.open_checked`.
    """
    ready = bundle_of(wishes, stream, quiet=quiet)
    from eagle3chat.engine.pair_check import open_checked, settle

    progress = Progress(stream, quiet=quiet or not stream.isatty())
    try:
        pair = open_checked(ready.options, progress, first)
    finally:
        progress.done()
    settle(ready.options)
    return pair
