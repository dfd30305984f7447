"""The safetensors header reader and writer, against the safetensors library and against damaged files."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from eagle3chat.engine.errors import BundleError
from eagle3chat.engine.tensor_file import LazyTensor, read_header, write_tensors

GOOD = {"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}


def _file(path: Path, header: Any, data: bytes, length: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + data)
    return path


def test_what_is_written_the_library_reads(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**32, (3, 4), dtype=np.uint32)
    halves = rng.standard_normal((3, 2)).astype(np.float16)
    ids = np.arange(5, dtype=np.int64)
    file = tmp_path / "x.safetensors"
    write_tensors(
        file,
        [
            LazyTensor("ids", "I64", (5,), ids.tobytes),
            LazyTensor("w", "U32", (3, 4), words.tobytes),
            LazyTensor("s", "F16", (3, 2), halves.tobytes),
        ],
    )
    loaded = load_file(file)
    assert np.array_equal(loaded["ids"], ids)
    assert np.array_equal(loaded["w"], words)
    assert np.array_equal(loaded["s"], halves)
    assert read_header(file).metadata == {"format": "mlx"}


def test_what_the_library_writes_is_read(tmp_path: Path) -> None:
    values = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.array([7], np.int64)}
    save_file(values, tmp_path / "x.safetensors")
    tensors = read_header(tmp_path / "x.safetensors").tensors
    assert {name: (info.dtype, info.shape) for name, info in tensors.items()} == {
        "a": ("I64", (1,)),
        "b": ("F32", (2, 3)),
    }
    assert tensors["b"].read() == values["b"].tobytes()


def test_bfloat16_passes_through_as_bytes(tmp_path: Path) -> None:
    data = bytes.fromhex("803f c0bf 00c0".replace(" ", ""))  # 1, -1.5, -2
    write_tensors(tmp_path / "x.safetensors", [LazyTensor("w", "BF16", (3,), lambda: data)])
    info = read_header(tmp_path / "x.safetensors").tensors["w"]
    assert (info.dtype, info.shape, info.read()) == ("BF16", (3,), data)


@pytest.mark.parametrize(
    ("header", "data", "length", "what"),
    [
        (GOOD, b"\0" * 10, None, r"cut off: its header asks for \d+ bytes, the file has \d+"),
        (GOOD, b"\0" * 20, None, r"has 4 bytes more than its header says"),
        (GOOD, b"\0" * 16, 10**15, r"no whole header"),
        (GOOD, b"\0" * 16, 200, r"no whole header"),
        (b"not json!", b"", None, r"its header is not JSON"),
        (b"[1]", b"", None, r"its header is not an object"),
        ({"a": {"dtype": "F32", "shape": [2, 2]}}, b"\0" * 16, None, r"entry for a is malformed"),
        ({"a": {"dtype": "F32", "shape": [-2, -2], "data_offsets": [0, 16]}}, b"\0" * 16, None, r"malformed"),
        ({"a": {"dtype": "F32", "shape": ["2"], "data_offsets": [0, 8]}}, b"\0" * 8, None, r"malformed"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [True, 9]}}, b"\0" * 8, None, r"malformed"),
        ({"a": {"dtype": "Q7", "shape": [2], "data_offsets": [0, 8]}}, b"\0" * 8, None, r"unknown type Q7"),
        (
            {"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}},
            b"\0" * 8,
            None,
            r"does not fit its shape \[3\]",
        ),
        (
            GOOD | {"b": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}},
            b"\0" * 16,
            None,
            r"the tensor b overlaps the one before it",
        ),
        (
            GOOD | {"b": {"dtype": "F32", "shape": [2], "data_offsets": [20, 28]}},
            b"\0" * 28,
            None,
            r"the tensor b leaves a hole before it",
        ),
    ],
)
def test_a_damaged_file_is_named_with_what_is_wrong(
    tmp_path: Path, header: Any, data: bytes, length: int | None, what: str
) -> None:
    file = _file(tmp_path / "bad.safetensors", header, data, length)
    with pytest.raises(BundleError, match=what) as caught:
        read_header(file)
    assert caught.value.path == str(file)
    assert caught.value.fix


@pytest.mark.parametrize("size", [0, 7])
def test_a_file_too_short_for_its_length(tmp_path: Path, size: int) -> None:
    (tmp_path / "x").write_bytes(b"\0" * size)
    with pytest.raises(BundleError, match="no whole header"):
        read_header(tmp_path / "x")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="No such file"):
        read_header(tmp_path / "x")


def test_a_tensor_of_the_wrong_size_is_our_own_mistake(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="w: 3 bytes, not 8"):
        write_tensors(tmp_path / "x", [LazyTensor("w", "F32", (2,), lambda: b"abc")])
