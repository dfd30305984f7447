"""Targets for the MLX tests: checkpoints as bundles without a draft, models of mlx-lm's own, and a reader."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import numpy.typing as npt
from families import family_checkpoint
from mlx.utils import tree_flatten
from mlx_lm import utils
from mlx_lm.models.cache import RotatingKVCache

from eagle3chat.engine.bundle import Bundle, open_bundle
from eagle3chat.engine.config import Manifest, Rope, TargetConfig
from eagle3chat.engine.export import export_bundle
from eagle3chat.engine.mlx_target import MlxTarget

mx.set_default_device(mx.cpu)
Array = npt.NDArray[np.float32]
LFM2: dict[str, Any] = {
    "model_type": "lfm2",
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 256,
    "norm_eps": 1e-5,
    "conv_bias": False,
    "conv_L_cache": 3,
    "block_dim": 32,
    "block_multiple_of": 8,
    "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": False,
    "block_ff_dim": 48,
    "layer_types": ["conv", "full_attention", "conv"],
    "tie_word_embeddings": True,
}
"""A model with short convolutions, whose state cannot go back."""


def family_bundle(directory: Path, family: str, **options: Any) -> Bundle:
    """The checkpoint that `family_checkpoint` writes, as a bundle; the checkpoint stays at `directory`/source."""
    made = family_checkpoint(directory, family, **options)
    source = made.rename(directory / "source")
    return open_bundle(export_bundle(source, None, directory / "bundle"))


def bundle_of(directory: Path) -> Bundle:
    """A bundle without a door around `directory`/target, for models and quantisations that export does not make."""
    config = json.loads((directory / "target" / "config.json").read_text())
    target = TargetConfig(
        family=config["model_type"],
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        intermediate_size=1,
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        num_kv_heads=config["num_key_value_heads"],
        head_dim=config["hidden_size"] // config["num_attention_heads"],
        rms_eps=1e-5,
        rope=Rope(),
        max_position=config["max_position_embeddings"],
        tie_embeddings=config["tie_word_embeddings"],
    )
    manifest = Manifest(
        name="tiny",
        draft_name="",
        family=target.family,
        target=target,
        draft=None,
        quantization=None,
        default_chain=0,
        max_chain=8,
        min_prefill=1,
        max_prefill=32,
        max_seq_len=target.max_position,
        template="model",
        bos_id=-1,
        stop_ids=(2,),
        tokenizer_sha256="",
        sources=(),
        command="",
        created="",
        version="0",
    )
    return Bundle(directory, manifest)


def own_model(directory: Path, config: dict[str, Any], quantization: dict[str, Any] | None = None) -> nn.Module:
    """Write a random model of mlx-lm's own definition to `directory`/target as mlx-lm does, and return it."""
    model_class, arguments = utils._get_classes(config)
    mx.random.seed(1)
    model = model_class(arguments.from_dict(config))
    scaled = [(n, 3.0 * w if w.ndim > 1 else w) for n, w in tree_flatten(model.parameters())]
    model.load_weights(scaled)
    if quantization is not None:
        nn.quantize(model, **quantization)
        config = config | {"quantization": quantization}
    target = directory / "target"
    target.mkdir(parents=True)
    mx.save_safetensors(str(target / "model.safetensors"), dict(tree_flatten(model.parameters())))
    (target / "config.json").write_text(json.dumps(config))
    return model


def opened(bundle: Bundle, taps: Sequence[int] = (), capacity: int = 256, dtype: mx.Dtype = mx.float32) -> MlxTarget:
    """A target that reports to no one."""
    return MlxTarget(bundle, tuple(taps), capacity, dtype, lambda share: None)


def ids(tokens: Iterable[int]) -> mx.array:
    """Tokens as a pass takes them."""
    return mx.array(list(tokens), dtype=mx.int32)


def counted(target: MlxTarget, tokens: Sequence[int], sizes: Iterable[int]) -> Array:
    """Logits [M, V] of a new conversation, in passes of the given sizes whose rows all count."""
    assert target.keep(0)
    rows, start = [], 0
    for size in sizes:
        logits, _ = target(ids(tokens[start : start + size]))
        target.advance(size)
        mx.eval(logits, target.cache_arrays())
        rows.append(np.array(logits))
        start += size
    assert start == len(tokens)
    return np.concatenate(rows)


class TrimmedStock:
    """mlx-lm's own sliding cache, rolled back as its speculative loop does, behind the face of ours."""

    def __init__(self, window: int, slack: int) -> None:
        self.window = window
        self.stock = RotatingKVCache(max_size=window)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stock, name)  # offset, make_mask, update_and_fetch, state, nbytes

    def can_keep(self, rows: int) -> bool:
        """As it claims by trimming without a word."""
        return rows <= self.stock.offset

    def keep(self, rows: int) -> None:
        """Trim."""
        self.stock.trim(self.stock.offset - rows)
