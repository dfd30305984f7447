"""Putting a bundle's files into a directory: beside the destination first, renamed at the end.

A target that is taken as it is keeps its files: they are linked (the files themselves, for a hub's cache holds symbolic
links), or referred to from another disk, or copied. All else is written tensor by tensor, so memory stays near the
largest one. Knows no source's layout.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eagle3chat.engine.bundle import INDEX, TENSORS
from eagle3chat.engine.errors import BundleError
from eagle3chat.engine.finite import EXPONENTS, check_finite
from eagle3chat.engine.tensor_file import ITEM_BYTES, PIECE, LazyTensor, read_header, write_tensors

ROOM = "Free some space, or choose another directory."
SPARE = 1 << 25  # bytes beside the tensors: headers, configs, the tokenizer
Done = Callable[[int], None]


@contextmanager
def beside(output: Path) -> Iterator[Path]:
    """A new directory beside `output`, which takes its place when the block ends well and goes when it does not."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{output.name}.partial-", dir=output.parent))
        try:
            made = work / "bundle"
            made.mkdir()
            yield made
            _put(made, output)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        what = f"cannot be written ({error.strerror or error})"
        raise BundleError(str(output), what, ROOM) from error


def _put(made: Path, output: Path) -> None:
    """Rename; what was there steps aside first and comes back if the new one cannot take its place."""
    old = made.with_name("old")
    if output.exists():
        output.rename(old)
    try:
        made.rename(output)
    except OSError:
        if old.exists():
            old.rename(output)
        raise


def check_room(output: Path, size: int) -> None:
    """Whether so many bytes and a few more fit beside `output`.

    Raises:
        BundleError: They do not.
    """
    place = output.absolute().parent
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < size + SPARE:
        what = f"needs {(size + SPARE) / 1e9:,.2f} GB, and {free / 1e9:,.2f} GB are free"
        raise BundleError(str(output), what, ROOM)


def write_part(directory: Path, tensors: Sequence[LazyTensor], config: dict[str, Any], done: Done) -> None:
    """Write a part's tensors and its config.json; their numbers are checked on the way.

    Raises:
        CheckpointError: A number is not finite, or a tensor cannot be converted exactly.
    """
    directory.mkdir()
    write_tensors(directory / TENSORS, in_order(tensors), written=done, check=check_finite)
    write_json(directory / "config.json", config)


def in_order(tensors: Sequence[LazyTensor]) -> list[LazyTensor]:
    """So that each begins at a multiple of its item's size; a matrix's scales and biases stay behind it if they can."""

    def rank(tensor: LazyTensor) -> int:
        item = ITEM_BYTES[tensor.dtype]
        if item == 8:
            return 0
        return 1 if tensor.size % 4 == 0 else 4 - item  # 2: items of two bytes, 3: of one

    return sorted(tensors, key=rank)


def keep_files(
    directory: Path,
    files: Sequence[Path],
    tensors: Sequence[LazyTensor],
    config: dict[str, Any],
    copy: bool,
    done: Done,
) -> str:
    """Put a part's files there as they are, and its config.json; the numbers in them are checked.

    Args:
        tensors: What is in the files.
        copy: Copy instead of linking.
        done: Called with the size of each tensor that was checked, and of each piece that was copied.

    Returns:
        What the user should know of them; empty: nothing.
    """
    directory.mkdir()
    for tensor in tensors:
        place = 0
        for piece in tensor.pieces() if tensor.dtype in EXPONENTS else ():
            check_finite(tensor, place, memoryview(piece))
            place += len(piece)
            done(len(piece))
        done(tensor.size - place)
    count, how = len(files), ""
    weights: dict[str, str] = {}
    for number, file in enumerate(sorted(files), 1):
        name = TENSORS if count == 1 else f"model-{number:05}-of-{count:05}.safetensors"
        if copy:
            _copy(file, directory / name, done)
        else:
            how = _link(file.resolve(), directory / name) or how
        weights |= dict.fromkeys(read_header(file).tensors, name)
    if count > 1:
        write_json(directory / INDEX, {"metadata": {}, "weight_map": weights})
    write_json(directory / "config.json", config)
    return how


def _copy(file: Path, place: Path, done: Done) -> None:
    with file.open("rb") as source, place.open("wb") as copy:
        while piece := source.read(PIECE):
            copy.write(piece)
            done(len(piece))


def _link(file: Path, place: Path) -> str:
    """A remark; empty: none."""
    try:
        os.link(file, place)
    except OSError:  # another disk, or one without links
        place.symlink_to(file)
        return f"The target's weights stay in {file.parent}; --copy-target copies them."
    return ""


def write_json(path: Path, values: dict[str, Any]) -> None:
    """With two spaces, for reading."""
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
