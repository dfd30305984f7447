"""A safetensors file: its header, checked without reading the tensors, and a writer of raw bytes.

Format: u64 little-endian length n, n bytes of JSON (name -> dtype, shape, data_offsets; `__metadata__`
-> strings), then the tensors, row-major and little-endian, without holes. Plain Python, so that a file can
be checked without numpy, and so that bfloat16, which numpy lacks, passes through as it is.
Knows nothing about what the tensors mean.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from eagle3chat.engine.errors import BundleError
from eagle3chat.engine.safe_json import parse_json

ITEM_BYTES: Mapping[str, int] = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
}
HEADER_LIMIT = 100_000_000  # bytes; the format's own limit
MOST_AXES = 8
LARGEST = 1 << 53  # of a number in a header
DAMAGED = "Copy or download the file again."

PIECE = 1 << 24  # bytes that are copied at once

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies. `start` and `end` are bytes from the beginning of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    start: int
    end: int

    def read(self) -> bytes:
        """The raw bytes, row-major and little-endian."""
        return self.part(0, self.end - self.start)

    def part(self, start: int, end: int) -> bytes:
        """The raw bytes start .. end - 1 of the tensor."""
        with self.path.open("rb") as file:
            file.seek(self.start + start)
            data = file.read(end - start)
        if len(data) != end - start:
            raise BundleError(str(self.path), f"the file ended inside the tensor {self.name}", DAMAGED)
        return data


@dataclass(frozen=True, slots=True)
class LazyTensor:
    """A tensor to be written; `read` gives its raw bytes when its turn comes, `part` those between two places."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], Buffer]
    part: Callable[[int, int], Buffer] | None = None  # None: only the whole can be read

    @property
    def size(self) -> int:
        """Bytes."""
        return prod(self.shape) * ITEM_BYTES[self.dtype]

    def pieces(self) -> Iterator[Buffer]:
        """The raw bytes in order, some at a time where that can be."""
        if self.part is None:
            yield self.read()
            return
        for start in range(0, self.size, PIECE):
            yield self.part(start, min(start + PIECE, self.size))

    def rows(self, places: Iterable[int]) -> bytes:
        """The raw bytes of some rows (of the first axis), one after the other."""
        width = self.size // self.shape[0]
        if self.part is not None:
            return b"".join(self.part(place * width, (place + 1) * width) for place in places)
        whole = memoryview(self.read()).cast("B")
        return b"".join(whole[place * width : (place + 1) * width] for place in places)


@dataclass(frozen=True, slots=True)
class TensorFile:
    """A safetensors file whose header was read and holds together."""

    path: Path
    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]


def read_header(path: Path) -> TensorFile:
    """Read and check the header of a safetensors file.

    Raises:
        BundleError: The file is missing, is not a safetensors file, or is shorter than its header says.
    """
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # waits for no pipe
            size = os.fstat(file.fileno()).st_size
            start = file.read(8)
            length = int.from_bytes(start, "little")
            if len(start) < 8 or length > min(HEADER_LIMIT, size - 8):
                raise BundleError(
                    str(path), f"not a safetensors file, or cut off: it has {size:,} bytes and no whole header", DAMAGED
                )
            raw = file.read(length)
    except OSError as error:
        raise BundleError(str(path), f"cannot be read ({error.strerror or error})", "Check the path.") from error
    try:
        header = parse_json(raw)
    except ValueError as error:
        raise BundleError(str(path), "not a safetensors file: its header is not JSON", DAMAGED) from error
    if not isinstance(header, dict):
        raise BundleError(str(path), "not a safetensors file: its header is not an object", DAMAGED)
    metadata = header.pop("__metadata__", None) or {}
    tensors = {name: _entry(path, name, entry, 8 + length) for name, entry in header.items()}
    _check_extent(path, tensors.values(), 8 + length, size)
    return TensorFile(path, tensors, metadata if isinstance(metadata, dict) else {})


def _entry(path: Path, name: str, entry: Any, base: int) -> TensorInfo:
    try:
        dtype, shape, (lo, hi) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers = [lo, hi, *shape]
        well_formed = isinstance(dtype, str) and len(shape) <= MOST_AXES
        well_formed = well_formed and all(type(n) is int and 0 <= n < LARGEST for n in numbers)
    except (KeyError, TypeError, ValueError):
        well_formed = False
    if not well_formed:
        raise BundleError(str(path), f"the header's entry for {name} is malformed", DAMAGED)
    if dtype not in ITEM_BYTES:
        raise BundleError(str(path), f"the tensor {name} has the unknown type {dtype}", "Use another checkpoint.")
    if hi - lo != prod(shape) * ITEM_BYTES[dtype]:
        raise BundleError(str(path), f"the extent of the tensor {name} does not fit its shape {list(shape)}", DAMAGED)
    return TensorInfo(name, dtype, tuple(shape), path, base + lo, base + hi)


def _check_extent(path: Path, tensors: Iterable[TensorInfo], base: int, size: int) -> None:
    end = base
    for info in sorted(tensors, key=lambda t: (t.start, t.end)):
        if info.start != end:
            how = "overlaps the one before it" if info.start < end else "leaves a hole before it"
            raise BundleError(str(path), f"the tensor {info.name} {how}", DAMAGED)
        end = info.end
    if end > size:
        raise BundleError(str(path), f"cut off: its header asks for {end:,} bytes, the file has {size:,}", DAMAGED)
    if end < size:
        raise BundleError(str(path), f"has {size - end:,} bytes more than its header says", DAMAGED)


def write_tensors(
    path: Path,
    tensors: Iterable[LazyTensor],
    metadata: Mapping[str, str] | None = None,
    written: Callable[[int], None] | None = None,
    check: Callable[[LazyTensor, int, memoryview], None] | None = None,
) -> None:
    """Write a safetensors file, one tensor or a piece of one in memory at a time.

    Args:
        path: The file; replaced when it exists.
        tensors: In file order; put wide types first where alignment matters.
        metadata: Strings for `__metadata__`; {"format": "mlx"} unless given.
        written: Called with the number of bytes of each piece once it is in the file.
        check: Called with a tensor, a place in it in bytes, and the bytes from there on, before they are written.
    """
    tensors = tuple(tensors)
    header: dict[str, Any] = {"__metadata__": dict(metadata or {"format": "mlx"})}
    end = 0
    for tensor in tensors:
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [end, end + tensor.size],
        }
        end += tensor.size
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little"))
        file.write(raw)
        for tensor in tensors:
            place = 0
            for piece in tensor.pieces():
                data = memoryview(piece)
                if check is not None:
                    check(tensor, place, data)
                file.write(data)
                place += data.nbytes
                if written is not None:
                    written(data.nbytes)
            assert place == tensor.size, f"{tensor.name}: {place} bytes, not {tensor.size}"
