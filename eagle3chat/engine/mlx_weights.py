"""A draft's weights in MLX: read from a safetensors file, dense or MLX affine quantised, and how rows meet them.

Arrays of the file are lazy until they are evaluated. A quantised matrix stays quantised; its scales and biases take
the dtype of the activations, as all else that is dense does. Knows tensor names and shapes, no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from eagle3chat.engine.errors import BundleError

AGAIN = "Make the bundle again."
BITS = (2, 3, 4, 5, 6, 8)
GROUP = 32  # columns that share a scale where a dense matrix is packed here


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix [N, K], dense, or as words with one scale and one bias for each group of columns.

    Args:
        weight: [N, K], or U32 [N, K * bits / 32].
        scales, biases: [N, K / group]; None: dense.
        group, bits: Of a quantised matrix.
    """

    weight: mx.array
    scales: mx.array | None = None
    biases: mx.array | None = None
    group: int = 0
    bits: int = 0

    @property
    def arrays(self) -> list[mx.array]:
        """What it is made of."""
        return [part for part in (self.weight, self.scales, self.biases) if part is not None]

    def rows(self, ids: mx.array) -> mx.array:
        """Rows [M, K] of the ids [M]: an embedding."""
        if self.scales is None:
            return self.weight[ids]
        words, *numbers = (part[ids] for part in self.arrays)
        wide = [part.astype(mx.float32) for part in numbers]  # in bfloat16, 8 bits would be off by up to a step
        rows = mx.dequantize(words, *wide, group_size=self.group, bits=self.bits)
        return rows.astype(self.scales.dtype)

    def packed(self, bits: int) -> Matrix:
        """The same in fewer bits, near its values; itself when it has few already, or no groups of columns."""
        if self.scales is not None or self.weight.shape[1] % GROUP:
            return self
        return Matrix(*mx.quantize(self.weight, group_size=GROUP, bits=bits), group=GROUP, bits=bits)

    def times(self, x: mx.array) -> mx.array:
        """x [M, K] -> [M, N]."""
        if self.scales is None:
            return x @ self.weight.T
        return mx.quantized_matmul(
            x, self.weight, self.scales, self.biases, transpose=True, group_size=self.group, bits=self.bits
        )


@dataclass(frozen=True, slots=True)
class Linear:
    """x [M, K] -> x W^T + b [M, N]."""

    matrix: Matrix
    bias: mx.array | None = None

    @property
    def arrays(self) -> list[mx.array]:
        """What it is made of."""
        return [*self.matrix.arrays, *([] if self.bias is None else [self.bias])]

    def __call__(self, x: mx.array) -> mx.array:
        y = self.matrix.times(x)
        return y if self.bias is None else y + self.bias


@dataclass(frozen=True, slots=True)
class Norm:
    """RMS norm over the last dimension: x / sqrt(mean(x^2) + eps) * weight."""

    weight: mx.array
    eps: float

    @property
    def arrays(self) -> list[mx.array]:
        """What it is made of."""
        return [self.weight]

    def __call__(self, x: mx.array) -> mx.array:
        return mx.fast.rms_norm(x, self.weight, self.eps)


class Checkpoint:
    """Named tensors of one safetensors file.

    Args:
        file: Its path.
        dtype: Of the activations.

    Raises:
        BundleError: The file is not readable, or a tensor that is asked for is missing or misshapen.
    """

    def __init__(self, file: Path, dtype: mx.Dtype) -> None:
        self._path, self._dtype = str(file), dtype
        try:
            self._tensors = mx.load(self._path)
        except (RuntimeError, ValueError, OSError) as error:
            raise BundleError(self._path, f"is not readable as safetensors ({error})", AGAIN) from error

    def tensor(self, name: str, *shape: int) -> mx.array:
        """A tensor as it is stored; `shape` is checked when given."""
        if name not in self._tensors:
            raise BundleError(self._path, f"the tensor {name} is missing", AGAIN)
        value = self._tensors[name]
        if shape and value.shape != shape:
            raise BundleError(self._path, f"the tensor {name} is {value.shape} and should be {shape}", AGAIN)
        return value

    def vector(self, name: str, size: int) -> mx.array:
        """A tensor [size] in the dtype of the activations."""
        return self.tensor(name, size).astype(self._dtype)

    def norm(self, module: str, size: int, eps: float) -> Norm:
        """An RMS norm."""
        return Norm(self.vector(f"{module}.weight", size), eps)

    def matrix(self, module: str, rows: int, columns: int) -> Matrix:
        """The weight [rows, columns] of a module, quantised when it has scales.

        Width and group follow from the shapes, since `columns` is known.
        """
        if f"{module}.scales" not in self._tensors:
            return Matrix(self.tensor(f"{module}.weight", rows, columns).astype(self._dtype))
        words, scales = self.tensor(f"{module}.weight"), self.tensor(f"{module}.scales")
        bits, group = 32 * words.shape[-1] // columns, columns // scales.shape[-1]
        whole = 32 * words.shape[-1] == bits * columns and group * scales.shape[-1] == columns
        if bits not in BITS or not whole or words.shape[0] != rows:
            what = f"{module} is not {rows} x {columns} affine: words {words.shape}, scales {scales.shape}"
            raise BundleError(self._path, what, AGAIN)
        biases = self.tensor(f"{module}.biases", *scales.shape)
        return Matrix(words, scales.astype(self._dtype), biases.astype(self._dtype), group, bits)

    def linear(self, names: dict[str, int], columns: int, biased: bool = False, bits: int = 0) -> Linear:
        """The modules of `names` (name -> rows) over each other, where they are of one kind.

        Args:
            bits: To pack a dense matrix in; 0: it stays dense.
        """
        parts = [self.matrix(name, rows, columns) for name, rows in names.items()]
        bias = mx.concatenate([self.vector(f"{name}.bias", rows) for name, rows in names.items()]) if biased else None
        matrix = self._stacked(parts, list(names))
        return Linear(matrix.packed(bits) if bits else matrix, bias)

    def _stacked(self, parts: Sequence[Matrix], names: Sequence[str]) -> Matrix:
        first = parts[0]
        if len(parts) == 1:
            return first
        if any((part.group, part.bits) != (first.group, first.bits) for part in parts):
            what = f"the modules {', '.join(names)} are not quantised alike"
            raise BundleError(self._path, what, AGAIN)
        pieces = [mx.concatenate(same) for same in zip(*(part.arrays for part in parts), strict=True)]
        return Matrix(*pieces, group=first.group, bits=first.bits)
