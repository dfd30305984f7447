"""Matrices on their way from another format of integers into MLX affine form, w = scales * u + biases.

A format says how to get the words, the scales and the biases as numbers; here they become three tensors, in types that
hold them exactly. Groups that MLX does not take are made finer by repetition, which changes no weight. Knows no format
and no model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle3chat.engine.affine import NotExactError
from eagle3chat.engine.config import Quantization
from eagle3chat.engine.errors import CheckpointError
from eagle3chat.engine.layout import BITS, GROUPS
from eagle3chat.engine.tensor_file import Buffer, LazyTensor

Array = npt.NDArray[Any]
Form = tuple[int, int]
"""Group size and bits."""
NUMPY: Mapping[str, str] = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "U32": "<u4",
    "BOOL": "?",
}
OTHER = "Use a dense checkpoint, or one in MLX's affine layout."


@dataclass(frozen=True, slots=True)
class Codes:
    """A quantised matrix [.., N, K].

    Args:
        shape: Of the dense matrix.
        group: Columns that share a scale; any divisor of K.
        words: U32 [.., N, K * bits / 32].
        scales: Numbers [.., N, K / group].
        biases: Likewise.
        scale_type, bias_type: F32, F16 or BF16, in which they are stored.
        word_part: The bytes of the words between two places, where they can be had without the whole.
    """

    shape: tuple[int, ...]
    group: int
    bits: int
    words: Callable[[], Array]
    scales: Callable[[], Array]
    biases: Callable[[], Array]
    scale_type: str
    bias_type: str
    word_part: Callable[[int, int], Buffer] | None = None


@dataclass(frozen=True, slots=True)
class Converted:
    """The tensors of a target in a bundle's forms."""

    tensors: dict[str, LazyTensor] = field(default_factory=dict)
    forms: dict[str, Form] = field(default_factory=dict)  # of each quantised module
    inexact: dict[str, str] = field(default_factory=dict)  # modules that stand there dense, and why

    def add(self, module: str, codes: Codes, where: str) -> None:
        """Put a quantised matrix in.

        Raises:
            CheckpointError: Its groups or its width have no affine form.
        """
        group = _group(codes, f"{where}: {module}")
        self.forms[module] = group, codes.bits
        rows, columns = codes.shape[:-1], codes.shape[-1]
        groups = (*rows, columns // group)
        named = partial(_parameters, repeat=codes.group // group)
        words = (*rows, columns * codes.bits // 32)
        scales = partial(_bytes, named, codes.scales, codes.scale_type, where, module)
        biases = partial(_bytes, named, codes.biases, codes.bias_type, where, module)
        for tensor in (
            LazyTensor(f"{module}.weight", "U32", words, lambda: codes.words().tobytes(), codes.word_part),
            LazyTensor(f"{module}.scales", codes.scale_type, groups, scales),
            LazyTensor(f"{module}.biases", codes.bias_type, groups, biases),
        ):
            self.tensors[tensor.name] = tensor

    def add_dense(self, module: str, shape: tuple[int, ...], read: Callable[[], Array], reason: str) -> None:
        """Put a matrix in that has no affine form, as its numbers."""
        name = f"{module}.weight"
        self.tensors[name] = LazyTensor(name, "F32", shape, lambda: np.ascontiguousarray(read(), "<f4").tobytes())
        self.inexact[module] = reason


def array_of(tensor: LazyTensor) -> Array:
    """A tensor's values; bfloat16, which numpy lacks, as float32."""
    if tensor.dtype == "BF16":
        wide = np.frombuffer(tensor.read(), "<u2").astype(np.uint32) << 16
        return wide.view(np.float32).reshape(tensor.shape)
    return np.frombuffer(tensor.read(), NUMPY[tensor.dtype]).reshape(tensor.shape)


def quantization_of(forms: Mapping[str, Form]) -> Quantization | None:
    """The most frequent form as the rule, the others as exceptions; None when no module is quantised."""
    if not forms:
        return None
    usual = max(set(forms.values()), key=list(forms.values()).count)
    overrides = tuple((module, *form) for module, form in forms.items() if form != usual)
    return Quantization(*usual, overrides)


def product(scales: Array, factors: Array | float) -> Array:
    """scales * factors in float32.

    Raises:
        NotExactError: Some product has no float32.
    """
    exact = scales.astype(np.float64) * factors
    rounded = exact.astype(np.float32)
    if not np.array_equal(rounded.astype(np.float64), exact):
        raise NotExactError("a zero point times its scale does not fit float32")
    return rounded


def _group(codes: Codes, where: str) -> int:
    group = codes.group
    if codes.bits not in BITS or group < 1 or codes.shape[-1] % group:
        raise CheckpointError(f"{where} has {codes.bits} bits in groups of {group}, which is not known here.", OTHER)
    for size in (group, *sorted(GROUPS, reverse=True)):
        if size in GROUPS and group % size == 0:
            return size
    raise CheckpointError(f"{where} has groups of {group} columns, which MLX's layout has no place for.", OTHER)


def _parameters(read: Callable[[], Array], repeat: int) -> Array:
    values = read()
    return values if repeat == 1 else np.repeat(values, repeat, axis=-1)


def _bytes(
    named: Callable[[Callable[[], Array]], Array], read: Callable[[], Array], dtype: str, where: str, module: str
) -> bytes:
    try:
        return stored(named(read), dtype)
    except NotExactError as error:
        raise CheckpointError(f"{where}: {module} cannot be converted exactly: {error}.", OTHER) from error


def stored(values: Array, dtype: str) -> bytes:
    """Numbers as the bytes of a type, where it holds them all.

    Raises:
        NotExactError: It does not.
    """
    wide = np.ascontiguousarray(values, np.float32)
    if dtype == "F32":
        return wide.tobytes()
    if dtype == "BF16":
        bits = wide.view(np.uint32)
        if (bits & 0xFFFF).any():
            raise NotExactError("a number does not fit bfloat16")
        return (bits >> 16).astype("<u2").tobytes()
    assert dtype == "F16", dtype
    with np.errstate(over="ignore"):
        narrow = wide.astype("<f2")
    if not np.array_equal(narrow.astype(np.float32), wide):
        raise NotExactError("a number does not fit float16")
    return narrow.tobytes()
