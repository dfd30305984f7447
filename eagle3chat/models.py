"""The bundles that a person can choose from: those in the data directory and those opened lately.

The ones opened lately are a text file, one path a line, the last one first. Knows bundles, no screen and no tensors.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from eagle3chat.engine.errors import BundleError
from eagle3chat.engine.private_files import open_private, private_directory

MOST_RECENT = 20
NAME = 40  # characters that are shown of a name that is none
BUNDLES = "bundles"  # in the data directory
MANIFEST = "bundle.json"


@dataclass(frozen=True, slots=True)
class Model:
    """A bundle to choose."""

    path: Path
    name: str  # of the target
    draft: str = ""  # empty: there is none
    size: int = 0  # bytes of its files
    problem: str = ""  # why it cannot be opened; empty: nothing is known against it


def data_directory() -> Path:
    """Where this program's data lives."""
    from platformdirs import user_data_path

    return user_data_path("eagle3chat")


def recent_path() -> Path:
    """Where the bundles opened lately are noted."""
    return data_directory() / "recent-bundles.txt"


def models(directory: Path | None = None) -> list[Model]:
    """The bundles opened lately, then the others of the data directory.

    Args:
        directory: Instead of the data directory.
    """
    home = directory or data_directory()
    seen: dict[Path, None] = {}
    for path in (*recent(home / recent_path().name), *_found(home / BUNDLES)):
        seen.setdefault(path)
    return [model_at(path) for path in seen if (path / MANIFEST).is_file()]


def _found(bundles: Path) -> Iterator[Path]:
    with suppress(OSError):
        yield from sorted(path.parent.resolve() for path in bundles.glob(f"*/{MANIFEST}"))


def recent(file: Path) -> list[Path]:
    """The bundles opened lately."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    return [Path(line) for line in lines[:MOST_RECENT] if line.strip()]


def remember(bundle: str, file: Path | None = None) -> None:
    """Note that a bundle was opened. A disk that is full costs the note and nothing else."""
    file = file or recent_path()
    path = Path(os.path.realpath(bundle))
    others = [other for other in recent(file) if other != path]
    part = file.with_suffix(".part")
    with suppress(OSError, UnicodeEncodeError):
        private_directory(file.parent)
        with os.fdopen(open_private(part), "w", encoding="utf-8") as note:
            note.write("".join(f"{each}\n" for each in (path, *others)[:MOST_RECENT]))
        part.replace(file)


def model_at(path: Path) -> Model:
    """What is at a path; a bundle that cannot be opened says why."""
    from eagle3chat.engine.bundle import open_bundle

    path = Path(os.path.realpath(os.path.expanduser(path)))
    try:
        manifest = open_bundle(path).manifest
    except BundleError as error:
        return Model(path, path.name, problem=str(error))
    except OSError as error:
        return Model(path, path.name[:NAME], problem=f"It cannot be opened: {error.strerror}.")
    return Model(path, manifest.name, manifest.draft_name if manifest.draft else "", _size(path))


def _size(path: Path) -> int:
    total = 0
    for directory, _, files in os.walk(path):
        for name in files:
            with suppress(OSError):
                total += os.stat(os.path.join(directory, name)).st_size
    return total
