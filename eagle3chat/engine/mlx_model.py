"""A bundle's target as a model of mlx-lm: opened, cast, and mended where a definition differs from the published model.

Export writes config.json and the experts' tensors so that mlx-lm reads them as they are; see hf_config.py and
expert_layout.py. Knows no cache, no taps and no tokens.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm import utils
from mlx_lm.models.rope_utils import YarnRoPE

from eagle3chat.engine.config import Rope, TargetConfig
from eagle3chat.engine.errors import BackendError

Rows = Callable[[mx.array], mx.array]
ELSEWHERE = "Use the torch backend for this target."
HEADS = ("lm_head", "output", "embed_out")


@dataclass(frozen=True, slots=True)
class Opened:
    """A loaded model and its ends."""

    model: nn.Module  # (tokens [1, M], cache=list) -> logits [1, M, V]
    layers: list[nn.Module]
    embed: Rows  # token ids [M] -> raw embedding rows [M, Ht], dequantised, without the scale that some models put on
    head: Rows  # normed stream [M, Ht] -> [M, V], without a soft cap


def open_model(directory: Path, config: TargetConfig, dtype: mx.Dtype, report: Callable[[float], None]) -> Opened:
    """Load a target directory: config.json and safetensors, dense or quantised in any mode that mlx-lm loads.

    Args:
        config: What the bundle says of this target.
        dtype: Of the activations, and of every weight that is not packed.
        report: Told the share that is loaded, 0..1.

    Raises:
        BackendError: mlx-lm has no definition for this model, or the definition does not fit its config or weights.
    """
    name = str(directory / "config.json")
    try:
        model, _ = utils.load_model(directory, lazy=True)
    except FileNotFoundError as error:
        raise BackendError(f"The target cannot be opened: {error}.", "Make the bundle again.") from error
    except (ValueError, TypeError, KeyError, IndexError) as error:
        reason = " ".join(str(error).split())[:300]
        raise BackendError(f"mlx-lm cannot open the model of {name}: {reason}", ELSEWHERE) from error
    layers = list(getattr(model, "layers", ()))
    if len(layers) != config.num_layers:
        raise BackendError(f"mlx-lm makes {len(layers)} layers of {name}, not {config.num_layers}.", ELSEWHERE)
    _set_yarn(model, config.rope)
    _cast(model, dtype)
    for index, layer in enumerate(layers):
        mx.eval(layer.parameters())
        report((index + 1) / (len(layers) + 1))
    mx.eval(model.parameters())
    opened = Opened(model, layers, *_ends(model, config, dtype, name))
    report(1.0)
    return opened


def _set_yarn(model: nn.Module, rope: Rope) -> None:
    """Give yarn rotary positions the numbers of `rope`: mlx-lm always rounds the ramp's ends, gpt-oss does not."""
    if rope.kind != "yarn":
        return
    for module in model.modules():
        if isinstance(module, YarnRoPE):
            module._freqs = _yarn_wavelengths(rope, module.dims)
            module.mscale = rope.attention_factor


def _yarn_wavelengths(rope: Rope, dims: int) -> mx.array:
    """Wavelengths over 2 pi, [dims / 2]; Peng et al., "YaRN" (2023), the ramp between beta_fast and beta_slow."""

    def column(turns: float) -> float:
        return dims * math.log(rope.original_max_position / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = column(rope.beta_fast), column(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    high += 0.001 if low == high else 0.0
    plain = rope.theta ** (mx.arange(0, dims, 2, dtype=mx.float32) / dims)
    stretched = mx.clip((mx.arange(dims // 2, dtype=mx.float32) - low) / (high - low), 0, 1)
    return 1.0 / (stretched / (rope.factor * plain) + (1 - stretched) / plain)


def _cast(model: nn.Module, dtype: mx.Dtype) -> None:
    """Give all floating weights a dtype, but those that the definition keeps wide."""
    casts = getattr(model, "cast_predicate", lambda path: True)

    def cast(path: str, weight: mx.array) -> mx.array:
        wide = path.endswith("global_scale") or not casts(path)
        return weight if wide or not mx.issubdtype(weight.dtype, mx.floating) else weight.astype(dtype)

    model.update(tree_unflatten([(path, cast(path, weight)) for path, weight in tree_flatten(model.parameters())]))


def _ends(model: nn.Module, config: TargetConfig, dtype: mx.Dtype, name: str) -> tuple[Rows, Rows]:
    """The embedding and the head."""
    tables = [
        module
        for path, module in model.named_modules()
        if hasattr(module, "as_linear") and module.weight.shape[0] == config.vocab_size and "per_layer" not in path
    ]
    if len(tables) != 1:
        raise BackendError(f"mlx-lm's model of {name} has {len(tables)} token embeddings, not 1.", ELSEWHERE)
    rows = _mend_table(tables[0], dtype, _missing_scale(model, config, dtype))
    if config.tie_embeddings:
        return rows, tables[0].as_linear
    heads = [module for path, module in model.named_modules() if path.rsplit(".", 1)[-1] in HEADS]
    if len(heads) != 1:
        raise BackendError(f"mlx-lm's model of {name} has {len(heads)} heads, not 1.", ELSEWHERE)
    return rows, heads[0]


def _missing_scale(model: nn.Module, config: TargetConfig, dtype: mx.Dtype) -> float:
    """What the model's embedding scale lacks: Gemma 3's is rounded to bfloat16, whatever the activations are."""
    if getattr(model, "model_type", "") != "gemma3_text" or dtype == mx.bfloat16:
        return 1.0
    exact = config.hidden_size**0.5
    return exact / mx.array(exact, mx.bfloat16).item()


def _mend_table(table: nn.Module, dtype: mx.Dtype, scale: float) -> Rows:
    """Have the model take its embedding rows in `dtype`, which packed ones do not always have, times `scale`.

    Returns:
        The rows themselves, in `dtype`.
    """
    base = type(table)

    def rows(self: nn.Module, ids: mx.array) -> mx.array:
        return base.__call__(self, ids).astype(dtype)

    def call(self: nn.Module, ids: mx.array) -> mx.array:
        return rows(self, ids) if scale == 1.0 else rows(self, ids) * scale

    table.__class__ = type(f"Mended{base.__name__}", (base,), {"__call__": call})
    return functools.partial(rows, table)
