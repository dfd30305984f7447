"""Whether the weights of a bundle were changed in place since they were opened.

A file that was replaced (renamed over) or removed does no harm: what was opened is still there. One that was
written to may be mapped, and then the loaded weights changed with it. Knows no tensors.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from eagle3chat.engine.errors import BundleError
from eagle3chat.engine.events import Finished, Prefill, Round
from eagle3chat.engine.requests import Controls, Say


@dataclass(frozen=True, slots=True)
class Stamp:
    """What tells a file from itself after a change."""

    path: Path
    device: int
    inode: int
    size: int  # bytes
    time: int  # of the last change, ns

    @classmethod
    def of(cls, path: Path) -> Stamp:
        """The file as it is now; follows links.

        Raises:
            OSError: It cannot be looked at.
        """
        stat = os.stat(path)
        return cls(path, stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)

    @property
    def changed(self) -> bool:
        """Whether it was written to; False also where another file or none has its name now."""
        try:
            now = Stamp.of(self.path)
        except OSError:
            return False
        same = (now.device, now.inode) == (self.device, self.inode)
        return same and (now.size, now.time) != (self.size, self.time)


class Decoder(Protocol):
    """What is used of a Session."""

    controls: Controls

    def cancel(self) -> None: ...
    def reply(self, say: Say) -> Iterator[Prefill | Round | Finished]: ...


class Guarded:
    """A session that refuses to reply once a file of its weights was changed.

    Args:
        inner: The session.
        stamps: Of the files, as they were opened.
    """

    def __init__(self, inner: Decoder, stamps: Iterable[Stamp]) -> None:
        self._inner = inner
        self._stamps = tuple(stamps)

    @property
    def controls(self) -> Controls:
        """Those of the session."""
        return self._inner.controls

    @controls.setter
    def controls(self, controls: Controls) -> None:
        self._inner.controls = controls

    def cancel(self) -> None:
        """End the reply at its next step."""
        self._inner.cancel()

    def reply(self, say: Say) -> Iterator[Prefill | Round | Finished]:
        """Decode one reply.

        Raises:
            BundleError: A file was changed.
        """
        for stamp in self._stamps:
            if stamp.changed:
                raise BundleError(
                    str(stamp.path), "was changed while the model is open", "Restart the worker: it opens the new one."
                )
        yield from self._inner.reply(say)
