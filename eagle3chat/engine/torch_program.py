"""A pass of few rows through all layers as a tape of kernel calls on memory of its own, recorded beforehand.

On a small model what Python and torch do around a kernel costs as much as the kernel: here a pass is one call. The
numbers are those of the layers called one by one. Knows no embedding and no head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from eagle3chat.engine.torch_decoder import Layer
from eagle3chat.engine.torch_layers import FEW_ROWS, Norm
from eagle3chat.kernels.cpu_linear import CpuLinear
from eagle3chat.kernels.cpu_tape import Step, Tape, copy


class Program:
    """A target's layers for passes of 1 .. FEW_ROWS rows.

    Args:
        layers: Bound to their cache, with kernels for every part; see `fits`.
        norms: Norms of the stream: before layer 0, .., after the last one.
        taps: Boundaries whose stream is handed out.
    """

    def __init__(self, layers: Sequence[Layer], norms: Sequence[Norm], taps: frozenset[int]) -> None:
        self.layers, self.norms, self.taps = layers, norms, sorted(taps)
        self.width = norms[0].weight.shape[0]
        dtype, inner = norms[0].weight.dtype, layers[0].mlp.kernel.width
        attend = layers[0].attention.kernel
        widths = (self.width, self.width, attend.width_in, attend.width, self.width, 2 * inner, inner)
        self.memory = [torch.empty(FEW_ROWS, width, dtype=dtype) for width in widths]
        self.x, self.normed = self.memory[:2]
        self.tapped = torch.empty(FEW_ROWS, len(self.taps) * self.width, dtype=dtype)
        self.tapes: dict[int, Tape] = {}

    @staticmethod
    def fits(layers: Sequence[Layer]) -> bool:
        """Whether all parts of all layers run on the kernels."""
        return all(
            layer.attention.kernel is not None
            and layer.mlp.kernel is not None
            and layer.input_norm.kernel is not None
            and all(isinstance(linear, CpuLinear) for linear in layer.linears)
            for layer in layers
        )

    def record(self, rows: int) -> Tape:
        """The pass of so many rows, from `x` to `normed` and `tapped`."""
        x, normed = self.memory[0].data_ptr(), self.memory[1].data_ptr()
        steps = [self.norms[0].kernel.step(x, normed, rows)]
        for boundary, (layer, norm) in enumerate(zip(self.layers, self.norms[1:], strict=True)):
            steps += self._tap(boundary, rows) + self._layer(layer, norm, rows)
        steps += self._tap(len(self.layers), rows)
        return Tape(steps)

    def _layer(self, layer: Layer, norm: Norm, rows: int) -> list[Step]:
        """From the normed stream to the next one; `norm` follows the layer."""
        x, normed, qkv, attended, added, gate_up, gated = (part.data_ptr() for part in self.memory)
        return [
            layer.attention.qkv.step(normed, qkv, rows),
            layer.attention.kernel.step(qkv, attended, rows),
            layer.attention.out.step(attended, added, rows),
            layer.post_norm.kernel.add_step(x, added, x, normed, rows),
            layer.mlp.gate_up.step(normed, gate_up, rows),
            layer.mlp.kernel.step(gate_up, gated, rows),
            layer.mlp.down.step(gated, added, rows),
            norm.kernel.add_step(x, added, x, normed, rows),
        ]

    def _tap(self, boundary: int, rows: int) -> list[Step]:
        """The stream at a boundary into its columns of `tapped`, where it is a tap."""
        if boundary not in self.taps:
            return []
        line = self.width * self.x.element_size()
        to = self.tapped.data_ptr() + self.taps.index(boundary) * line
        return [copy(self.x.data_ptr(), to, rows, line, line, len(self.taps) * line)]

    def __call__(self, embedded: Tensor, start: int) -> tuple[Tensor, Tensor | None]:
        """Rows [M, width] at positions start .. -> the normed stream after the last layer, and the taps or None."""
        rows = embedded.shape[0]
        tape = self.tapes.get(rows)
        if tape is None:
            tape = self.tapes[rows] = self.record(rows)
        self.x[:rows].copy_(embedded)
        tape(start)
        return self.normed[:rows].clone(), self.tapped[:rows].clone() if self.taps else None
