"""GPTQ checkpoints (AutoGPTQ, GPTQModel) to MLX affine form, exactly where the columns are in order.

    qweight I32 [K*bits/32, N]    along K, the first column lowest: transposed, these are MLX's words
    qzeros  I32 [K/g, N*bits/32]  along N; the format "gptq" holds z - 1, "gptq_v2" holds z
    scales  F16 [K/g, N]
    g_idx   I32 [K]               the group of each column

w = scale * (u - z). Columns whose groups are not in order (act-order) have no affine form: such a matrix is given
dense.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from eagle3chat.engine.affine import NotExactError, unpack
from eagle3chat.engine.affine_source import Array, Codes, Converted, array_of, product
from eagle3chat.engine.errors import CheckpointError
from eagle3chat.engine.tensor_file import LazyTensor

WIDTHS = (2, 4, 8)
BEHIND: Mapping[str, int] = {"gptq": 1, "gptq_v2": 0}
"""What is added to a stored zero point, by checkpoint_format."""
PARTS = ("qweight", "qzeros", "scales", "g_idx")
ACT_ORDER = "its columns are not in the order of their groups (desc_act)"
OTHER = "Use another checkpoint of this model."


def gptq_tensors(stored: Mapping[str, LazyTensor], settings: Mapping[str, Any], where: str) -> Converted:
    """The target in a directory of this kind.

    Args:
        settings: `quantization_config` of its config.json.

    Raises:
        CheckpointError: Its layout is another one, or a tensor is missing or misshapen.
    """
    bits, form = settings.get("bits"), settings.get("checkpoint_format") or "gptq"
    if bits not in WIDTHS or form not in BEHIND:
        raise CheckpointError(f"{where}: GPTQ of the format {form!r} with {bits} bits is not known.", OTHER)
    made = Converted()
    for name, tensor in stored.items():
        module, _, leaf = name.rpartition(".")
        if leaf == "qweight":
            _add(made, _Matrix(stored, module, bits, BEHIND[form], where), where)
        elif leaf not in PARTS:
            made.tensors[name] = tensor
    return made


def _add(made: Converted, matrix: _Matrix, where: str) -> None:
    if matrix.in_order():
        made.add(matrix.module, matrix.codes(), where)
    else:
        made.add_dense(matrix.module, (matrix.rows, matrix.columns), matrix.dense, ACT_ORDER)


class _Matrix:
    """The parts of one matrix."""

    def __init__(self, stored: Mapping[str, LazyTensor], module: str, bits: int, behind: int, where: str) -> None:
        self.module, self.bits, self.behind, self.where = module, bits, behind, where
        missing = [part for part in PARTS[:3] if f"{module}.{part}" not in stored]
        if missing:
            raise CheckpointError(f"{where}: the tensor {module}.{missing[0]} is missing.", OTHER)
        self.weight, self.zeros, self.scales = (stored[f"{module}.{part}"] for part in PARTS[:3])
        self.index = stored.get(f"{module}.g_idx")
        parts = (self.weight, self.zeros, self.scales)
        fits = all(len(part.shape) == 2 and 0 not in part.shape for part in parts) and self.weight.dtype == "I32"
        if fits:
            self.columns, self.rows = self.weight.shape[0] * 32 // bits, self.weight.shape[1]
            count = self.scales.shape[0]
            self.group = self.columns // count
            fits = self.scales.shape[1] == self.rows and self.zeros.shape == (count, self.rows * bits // 32)
            fits = fits and self.columns % count == 0 and (self.index is None or self.index.shape == (self.columns,))
        if not fits:
            shapes = ", ".join(str(list(part.shape)) for part in parts)
            raise CheckpointError(f"{where}: {module} has parts of the shapes {shapes}, which is not GPTQ.", OTHER)

    def in_order(self) -> bool:
        """Whether every column is in the group that its place says."""
        index = None if self.index is None else array_of(self.index)
        return index is None or bool(np.array_equal(index, np.arange(self.columns) // self.group))

    def words(self) -> Array:
        """[N, K * bits / 32]."""
        return np.ascontiguousarray(array_of(self.weight).view("<u4").T)

    def points(self) -> Array:
        """Zero points [N, K/g]."""
        stored = unpack(array_of(self.zeros).view("<u4"), self.bits)
        if self.behind and (stored == 2**self.bits - 1).any():
            raise NotExactError("a stored zero point is -1, and written over its neighbours")
        return stored.T.astype(np.float64) + self.behind

    def codes(self) -> Codes:
        """In affine form."""
        return Codes(
            shape=(self.rows, self.columns),
            group=self.group,
            bits=self.bits,
            words=self.words,
            scales=lambda: array_of(self.scales).T,
            biases=lambda: product(array_of(self.scales).T, -self.points()),
            scale_type=self.scales.dtype,
            bias_type="F32",
        )

    def dense(self) -> Array:
        """Its numbers [N, K]."""
        assert self.index is not None
        groups = array_of(self.index)
        scales, zeros = array_of(self.scales).T, self.points().astype(np.float32)
        spread = partial(np.take, indices=groups, axis=1)
        values: Array = spread(scales).astype(np.float32) * (unpack(self.words(), self.bits) - spread(zeros))
        return values
