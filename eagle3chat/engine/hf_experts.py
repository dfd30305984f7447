"""A mixture's experts as Hugging Face's checkpoints have them, to the stacks of a bundle (expert_layout.py).

Published layouts: Qwen3 has a matrix of its own for each expert; Gemma 4 has stacks with gate above up; gpt-oss has
stacks with the input in the rows, gate and up in turns, or stacks in MXFP4 with gate and up in turns. No number is
changed. mlx-lm's own layout passes through. Knows bytes by the size of their items, not what they mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle3chat.engine.config import TargetConfig
from eagle3chat.engine.errors import CheckpointError
from eagle3chat.engine.expert_layout import EXPERT_MODULES
from eagle3chat.engine.tensor_file import ITEM_BYTES, LazyTensor

Array = npt.NDArray[Any]
Tensors = Mapping[str, LazyTensor]
FIX = "Download the checkpoint again, or convert it with mlx-lm."


def with_stacks(tensors: Tensors, config: TargetConfig, where: str) -> dict[str, LazyTensor]:
    """The tensors of a target, its experts stacked.

    Args:
        where: Names the directory in messages.

    Raises:
        CheckpointError: A tensor of the experts is missing or misshapen.
    """
    kind = config.experts
    if kind is None:
        return dict(tensors)
    made: dict[str, LazyTensor] = {}
    used: set[str] = set()
    for index in range(config.num_layers):
        layer = f"model.layers.{index}"
        if f"{layer}.{EXPERT_MODULES[kind.kind][1]}.down_proj.weight" in tensors:
            continue
        source = _Source(tensors, config, where, used)
        for name, tensor in _LAYOUTS[kind.kind](source, layer):
            made[name] = tensor
    return {name: tensor for name, tensor in tensors.items() if name not in used} | made


class _Source:
    """The tensors of a checkpoint, taken by name and shape; what was taken is put into `used`."""

    def __init__(self, tensors: Tensors, config: TargetConfig, where: str, used: set[str]) -> None:
        assert config.experts is not None
        self.tensors, self.where, self.used = tensors, where, used
        self.count, self.inner, self.width = config.experts.count, config.experts.intermediate_size, config.hidden_size

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def take(self, name: str, *shape: int) -> LazyTensor:
        found = self.tensors.get(name)
        if found is None:
            raise CheckpointError(f"{self.where}: the tensor {name} is missing.", FIX)
        if found.shape != shape:
            what = f"the tensor {name} has the shape {list(found.shape)}, not {list(shape)}"
            raise CheckpointError(f"{self.where}: {what}.", FIX)
        self.used.add(name)
        return found


Made = list[tuple[str, LazyTensor]]


def _qwen3(source: _Source, layer: str) -> Made:
    made = []
    inner, width = source.inner, source.width
    for part, shape in (("gate_proj", (inner, width)), ("up_proj", (inner, width)), ("down_proj", (width, inner))):
        at = f"{layer}.mlp.experts"
        own = [source.take(f"{at}.{expert}.{part}.weight", *shape) for expert in range(source.count)]
        other = next((tensor for tensor in own if tensor.dtype != own[0].dtype), None)
        if other is not None:
            raise CheckpointError(f"{source.where}: {other.name} is {other.dtype}, not {own[0].dtype}.", FIX)
        name = f"{layer}.mlp.switch_mlp.{part}.weight"
        made.append((name, LazyTensor(name, own[0].dtype, (source.count, *shape), partial(_joined, own))))
    return made


def _joined(tensors: list[LazyTensor]) -> bytes:
    return b"".join(tensor.read() for tensor in tensors)


def _gemma4(source: _Source, layer: str) -> Made:
    count, inner, width = source.count, source.inner, source.width
    both = source.take(f"{layer}.experts.gate_up_proj", count, 2 * inner, width)
    down = source.take(f"{layer}.experts.down_proj", count, width, inner)
    at = f"{layer}.experts.switch_glu"
    return [
        _changed(f"{at}.gate_proj.weight", both, (count, inner, width), lambda a: a[:, :inner]),
        _changed(f"{at}.up_proj.weight", both, (count, inner, width), lambda a: a[:, inner:]),
        _changed(f"{at}.down_proj.weight", down, down.shape, lambda a: a),
    ]


def _gpt_oss(source: _Source, layer: str) -> Made:
    count, inner, width = source.count, source.inner, source.width
    at = f"{layer}.mlp.experts"
    bias = source.take(f"{at}.gate_up_proj_bias", count, 2 * inner)
    down_bias = source.take(f"{at}.down_proj_bias", count, width)
    made = [
        _changed(f"{at}.gate_proj.bias", bias, (count, inner), lambda a: a[:, 0::2]),
        _changed(f"{at}.up_proj.bias", bias, (count, inner), lambda a: a[:, 1::2]),
        _changed(f"{at}.down_proj.bias", down_bias, down_bias.shape, lambda a: a),
    ]
    if f"{at}.gate_up_proj_blocks" in source:
        return made + _gpt_oss_mxfp4(source, at)
    both = source.take(f"{at}.gate_up_proj", count, width, 2 * inner)
    down = source.take(f"{at}.down_proj", count, inner, width)
    return [
        *made,
        _changed(f"{at}.gate_proj.weight", both, (count, inner, width), lambda a: a[:, :, 0::2].swapaxes(1, 2)),
        _changed(f"{at}.up_proj.weight", both, (count, inner, width), lambda a: a[:, :, 1::2].swapaxes(1, 2)),
        _changed(f"{at}.down_proj.weight", down, (count, width, inner), lambda a: a.swapaxes(1, 2)),
    ]


def _gpt_oss_mxfp4(source: _Source, at: str) -> Made:
    """Blocks U8 [E, N, K / 32, 16], the first column in the low half of a byte: the bytes of MLX's words."""
    count, inner, width = source.count, source.inner, source.width
    made = []
    for part, rows, columns in (("gate_up_proj", 2 * inner, width), ("down_proj", width, inner)):
        blocks = source.take(f"{at}.{part}_blocks", count, rows, columns // 32, 16)
        scales = source.take(f"{at}.{part}_scales", count, rows, columns // 32)
        targets = (("down_proj", 0, 1),) if part == "down_proj" else (("gate_proj", 0, 2), ("up_proj", 1, 2))
        for target, first, step in targets:
            own = partial(_every, first, step)
            shape = (count, rows // step, columns // 8)
            name, words = _changed(f"{at}.{target}.weight", blocks, (*shape[:2], columns // 2), own)
            made.append((name, replace(words, dtype="U32", shape=shape)))
            made.append(_changed(f"{at}.{target}.scales", scales, (*shape[:2], columns // 32), own))
    return made


def _every(first: int, step: int, a: Array) -> Array:
    return a[:, first::step]


def _changed(
    name: str, source: LazyTensor, shape: tuple[int, ...], change: Callable[[Array], Array]
) -> tuple[str, LazyTensor]:
    """A tensor made by moving the items of another."""

    def read() -> bytes:
        items = np.frombuffer(source.read(), f"<u{ITEM_BYTES[source.dtype]}").reshape(source.shape)
        moved = change(items)
        assert moved.size == prod(shape), (name, moved.shape, shape)
        return moved.tobytes()

    return name, LazyTensor(name, source.dtype, shape, read)


_LAYOUTS: Mapping[str, Callable[[_Source, str], Made]] = {"qwen3": _qwen3, "gemma4": _gemma4, "gpt_oss": _gpt_oss}
