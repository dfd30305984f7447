"""What a bundle was made from: names, sizes and hashes of files. Knows no format."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from eagle3chat.engine.config import Source

PIECE = 1 << 22
Done = Callable[[int], None]


def source_of(role: str, path: Path, files: Sequence[Path], name: str = "", done: Done | None = None) -> Source:
    """One source: a file by its contents, a directory by its files' names, sizes and hashes in order.

    Args:
        name: As it is called; empty: as the path is.
        done: Called with the number of bytes that were read.
    """
    sizes = [file.stat().st_size for file in files]
    hashes = [file_sha256(file, done) for file in files]
    if not path.is_dir():
        return Source(role, name or path.name, sizes[0], hashes[0])
    whole = hashlib.sha256()
    for file, size, digest in sorted(zip(files, sizes, hashes, strict=True)):
        whole.update(f"{file.name}\0{size}\0{digest}\n".encode())
    return Source(role, name or path.resolve().name, sum(sizes), whole.hexdigest())


def file_sha256(path: Path, done: Done | None = None) -> str:
    """Of a file's contents, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
            if done is not None:
                done(len(piece))
    return digest.hexdigest()
