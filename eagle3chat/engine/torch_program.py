"""A pass of few rows through all layers as a list of kernel calls on memory of its own, bound beforehand.

On a small model what Python and torch do around a kernel costs as much as the kernel: here a layer is eight calls
whose arguments are ready but for the position. The numbers are those of the layers called one by one. Knows no
embedding and no head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from eagle3chat.engine.torch_decoder import Layer
from eagle3chat.engine.torch_layers import FEW_ROWS, Norm
from eagle3chat.kernels.cpu_linear import CpuLinear

Call = Callable[[], None]
Step = tuple[Call, Callable[[int], None], Call, Call, Call, Call, Call, Call]


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
        self.steps: dict[int, list[Step]] = {}

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

    def bound(self, rows: int) -> list[Step]:
        """The calls of each layer, for so many rows."""
        x, normed, qkv, attended, added, gate_up, gated = (part.data_ptr() for part in self.memory)
        return [
            (
                layer.attention.qkv.bind(normed, qkv, rows),
                partial(layer.attention.kernel.run, qkv, attended, rows),
                layer.attention.out.bind(attended, added, rows),
                partial(layer.post_norm.kernel.run_add, x, added, x, normed, rows),
                layer.mlp.gate_up.bind(normed, gate_up, rows),
                partial(layer.mlp.kernel.run, gate_up, gated, rows),
                layer.mlp.down.bind(gated, added, rows),
                partial(norm.kernel.run_add, x, added, x, normed, rows),
            )
            for layer, norm in zip(self.layers, self.norms[1:], strict=True)
        ]

    def __call__(self, embedded: Tensor, start: int) -> tuple[Tensor, Tensor | None]:
        """Rows [M, width] at positions start .. -> the normed stream after the last layer, and the taps or None."""
        rows, width = embedded.shape[0], self.width
        steps = self.steps.get(rows)
        if steps is None:
            steps = self.steps[rows] = self.bound(rows)
        x = self.x[:rows].copy_(embedded)
        self.norms[0].kernel.run(x.data_ptr(), self.normed.data_ptr(), rows)
        taps = x.new_empty(rows, len(self.taps) * width) if self.taps else None
        ends = [*self.taps, len(steps)]
        done = 0
        for place, boundary in enumerate(ends):
            for qkv, attend, out, add, gate_up, gate, down, add_next in steps[done:boundary]:
                qkv()
                attend(start)
                out()
                add()
                gate_up()
                gate()
                down()
                add_next()
            done = boundary
            if place < len(self.taps):
                taps[:, place * width : (place + 1) * width] = x
        return self.normed[:rows].clone(), taps
