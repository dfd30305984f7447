"""A bundle's target as a model of mlx-lm: its config in the words of mlx-lm's definitions, its weights in one dtype.

mlx-lm drops config keys that a definition does not name. Where a checkpoint says with newer keys what the definition
reads under older ones, the value would silently become a default; `adapted` says it under both. Knows no cache, no taps
and no tokens.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm import utils
from mlx_lm.models.rope_utils import YarnRoPE

from eagle3chat.engine.config import Rope, TargetConfig
from eagle3chat.engine.errors import BackendError

Config = dict[str, Any]
Weights = dict[str, mx.array]
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
        keys = adapted(utils.load_config(directory), config)
        model, _ = utils.load_model(directory, lazy=True, model_config=keys, get_model_classes=_classes)
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


def adapted(config: Mapping[str, Any], target: TargetConfig) -> Config:
    """config.json with every value where mlx-lm's definition of the model looks for it.

    Raises:
        ValueError: mlx-lm has no such definition, or it cannot express a setting.
    """
    config = dict(config)
    if isinstance(config.get("text_config"), dict):
        # The bundle holds the text model alone. What is returned is laid over the file's keys: none can be taken away.
        config |= config["text_config"] | {"text_config": {}}
    config["tie_word_embeddings"] = target.tie_embeddings
    _, arguments = utils._get_classes(config)
    known = set(inspect.signature(arguments).parameters)
    config |= _rope_keys(config, "rope_parameters" in known)
    if "sliding_window_pattern" in known and "layer_types" not in known and config.get("layer_types"):
        config["sliding_window_pattern"] = _pattern(config["layer_types"])
    if config.get("use_sliding_window") and "use_sliding_window" not in known:
        raise ValueError("its definition has no sliding window")
    config.setdefault("head_dim", target.head_dim)
    config.setdefault("num_key_value_heads", target.num_kv_heads)
    return config


def _classes(config: Config) -> tuple[type, type]:
    """mlx-lm's definition, reading tensors in one more layout."""
    base, arguments = utils._get_classes(config)

    class Adapted(base):
        def sanitize(self, weights: Weights) -> Weights:
            if any(name.endswith(".experts.gate_up_proj") for name in weights) and config["model_type"] == "gpt_oss":
                weights = dict(_split_experts(weights))
            return super().sanitize(weights) if hasattr(base, "sanitize") else weights

    Adapted.__name__ = base.__name__
    return Adapted, arguments


def _split_experts(weights: Weights) -> Iterator[tuple[str, mx.array]]:
    """Dense experts of gpt-oss, [E, in, out] with gate and up in turns, as mlx-lm has them: [E, out, in] each."""
    for name, weight in weights.items():
        if name.endswith(".experts.gate_up_proj"):
            turned = weight.swapaxes(1, 2)
            yield name.replace("gate_up_proj", "gate_proj.weight"), mx.contiguous(turned[:, ::2])
            yield name.replace("gate_up_proj", "up_proj.weight"), mx.contiguous(turned[:, 1::2])
        elif name.endswith(".experts.gate_up_proj_bias"):
            yield name.replace("gate_up_proj_bias", "gate_proj.bias"), mx.contiguous(weight[:, ::2])
            yield name.replace("gate_up_proj_bias", "up_proj.bias"), mx.contiguous(weight[:, 1::2])
        elif name.endswith(".experts.down_proj"):
            yield name.replace("down_proj", "down_proj.weight"), mx.contiguous(weight.swapaxes(1, 2))
        else:
            yield name.replace(".experts.down_proj_bias", ".experts.down_proj.bias"), weight


def _rope_keys(config: Config, has_parameters: bool) -> Config:
    """`rope_theta` and `rope_scaling`, which most definitions read, of `rope_parameters`, which newer configs have."""
    given = config.get("rope_parameters")
    if not isinstance(given, dict) or not given:
        return {}
    keys: Config = {}
    if any(isinstance(value, dict) for value in given.values()):
        sliding, given = given.get("sliding_attention") or {}, given.get("full_attention") or {}
        if sliding.get("rope_type", "default") != "default" and not has_parameters:
            raise ValueError("its definition has plain rotary positions in sliding layers only")
        if "rope_theta" in sliding:
            keys["rope_local_base_freq"] = sliding["rope_theta"]
    if "rope_theta" in given:
        keys["rope_theta"] = given["rope_theta"]
    plain = (given.get("rope_type") or given.get("type") or "default") == "default"
    keys["rope_scaling"] = None if plain else {key: value for key, value in given.items() if key != "rope_theta"}
    return keys


def _pattern(layer_types: list[str]) -> int:
    """Every how many layers one has full attention."""
    full = [index for index, kind in enumerate(layer_types) if kind == "full_attention"]
    pattern = full[0] + 1 if full else 0
    if not full or full != list(range(pattern - 1, len(layer_types), pattern)):
        raise ValueError(f"its definition cannot order the layers as layer_types says: {layer_types}")
    return pattern


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
