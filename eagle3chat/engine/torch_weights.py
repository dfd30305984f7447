"""Reads weights out of safetensors files: dense, or MLX-affine quantised, and exactly what they say.

Files are mapped, so a tensor costs memory when it is used. An affine weight is kept as its codes with
one scale and one bias for each group of columns, `w = scales * u + biases`; nothing is rounded before
the caller asks for a dtype. Knows tensor names and shapes, no model.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from eagle3chat.engine.errors import BundleError


@dataclass(frozen=True, slots=True)
class Affine:
    """A quantised weight [N, K], column order as in the model.

    Args:
        words: U32 [N, K * bits / 32], the first column in the lowest bits.
        scales: [N, K / group], any float dtype.
        biases: [N, K / group].
        bits: 2, 3, 4, 5, 6 or 8.
        group: Columns that share a scale.
    """

    words: Tensor
    scales: Tensor
    biases: Tensor
    bits: int
    group: int

    @property
    def rows(self) -> int:
        """N."""
        return int(self.words.shape[0])

    def codes(self) -> Tensor:
        """U8 [N, K]."""
        data = self.words.view(torch.uint8).reshape(self.rows, -1)
        if self.bits == 8:
            return data
        if self.bits == 4:
            return torch.stack((data & 15, data >> 4), -1).reshape(self.rows, -1)
        places = torch.arange(8, dtype=torch.uint8, device=data.device)
        stream = ((data[..., None] >> places) & 1).reshape(self.rows, -1, self.bits)
        return (stream << torch.arange(self.bits, dtype=torch.uint8, device=data.device)).sum(-1, dtype=torch.uint8)

    def dense(self) -> Tensor:
        """Float32 [N, K]: exact products, one rounding of the sum."""
        codes = self.codes().float().view(self.rows, -1, self.group)
        codes.mul_(self.scales.float()[..., None]).add_(self.biases.float()[..., None])
        return codes.view(self.rows, -1)


Weight = Tensor | Affine
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""E2M1 without its sign, by code (OCP Microscaling Formats 1.0); code + 8 is the negative."""


def mxfp4(words: Tensor, scales: Tensor) -> Tensor:
    """bfloat16 [.., K] of MXFP4: words U32 [.., K / 8], the first column in the lowest bits, scales U8 [.., K / 32].

    Exact: a code has two significant bits, and a scale is a power of two.
    """
    codes = torch.tensor([*FP4, *(-value for value in FP4)])
    pairs = torch.stack((codes.repeat(16), codes.repeat_interleave(16)), -1).bfloat16()  # of each byte
    powers = torch.tensor([2.0 ** (power - 127) for power in range(256)], dtype=torch.float64).bfloat16()
    made = torch.empty(*scales.shape, 32, dtype=torch.bfloat16)
    rows = made.view(-1, scales.shape[-1], 32)
    data = words.view(torch.uint8).view(len(rows), -1)
    flat = scales.reshape(len(rows), -1)
    for start in range(0, len(rows), 4096):  # an index is eight bytes for two weights
        part = slice(start, start + 4096)
        opened = pairs[data[part].long()].view(-1, *rows.shape[1:])
        torch.mul(opened, powers[flat[part].long()][..., None], out=rows[part])
    return made.view(*scales.shape[:-1], -1)


def dense(weight: Weight) -> Tensor:
    """Float32 [N, K] of a weight of either kind."""
    return weight.dense() if isinstance(weight, Affine) else weight.float()


class Checkpoint:
    """Named tensors of some safetensors files.

    Args:
        files: Paths; a name may stand in one of them only.

    Raises:
        BundleError: A file is not readable, or a tensor that is asked for is missing or misshapen.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self._open = ExitStack()
        self._where = {}
        self._path = ""
        for path in files:
            self._path = str(path)
            try:
                handle = self._open.enter_context(safe_open(str(path), framework="pt"))
            except (SafetensorError, OSError) as error:
                raise BundleError(
                    self._path, f"is not readable as safetensors ({error})", "Make the bundle again."
                ) from error
            for name in handle.keys():  # noqa: SIM118 - not a mapping
                self._where[name] = handle

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def close(self) -> None:
        """Unmap the files. Tensors already taken stay valid."""
        self._where.clear()
        self._open.close()

    def tensor(self, name: str, *shape: int) -> Tensor:
        """A tensor as it is stored; `shape` is checked when given."""
        if name not in self._where:
            raise BundleError(self._path, f"the tensor {name} is missing", "Make the bundle again.")
        value = self._where[name].get_tensor(name)
        if shape and tuple(value.shape) != shape:
            what = f"the tensor {name} is {tuple(value.shape)} and should be {shape}"
            raise BundleError(self._path, what, "Make the bundle again.")
        return value

    def weight(self, module: str, rows: int, columns: int) -> Weight:
        """The weight [rows, columns] of a module, quantised when it has scales; MXFP4 becomes bfloat16, exactly.

        Width and group follow from the shapes, since `columns` is known.
        """
        if f"{module}.scales" not in self._where:
            return self.tensor(f"{module}.weight", rows, columns)
        if self._is_mxfp4(module):
            return self._opened(module, (rows,), columns)
        return Affine(*self._affine(module, (rows,), columns))

    def stack(self, module: str, count: int, rows: int, columns: int) -> Tensor | list[Affine]:
        """The weights of `count` matrices [rows, columns] that stand in one tensor, dense [count, rows, columns] or
        quantised, each on its own."""
        if f"{module}.scales" not in self._where:
            return self.tensor(f"{module}.weight", count, rows, columns)
        if self._is_mxfp4(module):
            return self._opened(module, (count, rows), columns)
        words, scales, biases, bits, group = self._affine(module, (count, rows), columns)
        return [Affine(*parts, bits, group) for parts in zip(words, scales, biases, strict=True)]

    def _is_mxfp4(self, module: str) -> bool:
        return f"{module}.biases" not in self._where and self.tensor(f"{module}.scales").dtype == torch.uint8

    def _opened(self, module: str, rows: tuple[int, ...], columns: int) -> Tensor:
        """An MXFP4 weight as bfloat16 [*rows, columns]."""
        words = self.tensor(f"{module}.weight", *rows, columns // 8)
        return mxfp4(words, self.tensor(f"{module}.scales", *rows, columns // 32))

    def _affine(self, module: str, rows: tuple[int, ...], columns: int) -> tuple[Tensor, Tensor, Tensor, int, int]:
        """Words, scales, biases, bits and group of a quantised module."""
        words = self.tensor(f"{module}.weight")
        scales = self.tensor(f"{module}.scales")
        bits, group = 32 * words.shape[-1] // columns, columns // scales.shape[-1]
        if bits not in (2, 3, 4, 5, 6, 8) or group * scales.shape[-1] != columns or tuple(words.shape[:-1]) != rows:
            size = " x ".join(str(size) for size in (*rows, columns))
            what = f"{module} is not {size} affine: words {tuple(words.shape)}, scales {tuple(scales.shape)}"
            raise BundleError(self._path, what, "Make the bundle again.")
        return words, scales, self.tensor(f"{module}.biases", *scales.shape), bits, group
