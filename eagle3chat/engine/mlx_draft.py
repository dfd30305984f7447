"""The EAGLE-3 head in MLX: a decoder of one layer, sometimes a few, that proposes tokens from the target's taps.

A row pairs the feature of a position with the embedding of the token after it, and predicts the one after that.
Where a feature comes from decides how it enters: taps go through `fuse`, the head's own output through `propose`;
never told from widths, which may be equal. Source of the first layer: Li et al., "EAGLE-3" (2025); those after
it are ordinary. All is lazy. Knows no rounds and no choice of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import mlx.core as mx
import mlx.nn as nn

from eagle3chat.engine.config import DraftConfig
from eagle3chat.engine.layout import TARGET_IDS
from eagle3chat.engine.mlx_draft_cache import DraftCache
from eagle3chat.engine.mlx_rope import Turn
from eagle3chat.engine.mlx_weights import Checkpoint, Linear, Norm

Rows = Callable[[mx.array], mx.array]
Store = Callable[[int, mx.array, mx.array], tuple[mx.array, mx.array]]
"""Layer, keys and values of new rows -> keys and values that they attend to."""


class Lender(Protocol):
    """What a target lends to its draft."""

    vocab_size: int

    def embed_rows(self, ids: mx.array) -> mx.array:
        """Raw embedding rows [M, Ht] of ids [M]."""

    def head(self, x: mx.array) -> mx.array:
        """Logits [M, V] of normed rows [M, Ht], before any cap."""


@dataclass(frozen=True, slots=True)
class Bits:
    """What dense matrices are packed in; 0: they stay dense."""

    most: int = 0
    few: int = 0  # of MLPs and the head


DENSE = Bits()


class Attention:
    """Grouped-query attention of one layer, over x [M, width]."""

    def __init__(self, config: DraftConfig, checkpoint: Checkpoint, at: str, width: int, turn: Turn, bits: int) -> None:
        c = config
        self._heads, self._kv, self._turn = c.num_heads, c.num_kv_heads, turn
        self._scale = c.head_dim**-0.5 * turn.scale
        q, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        names = {f"{at}.q_proj": q, f"{at}.k_proj": kv, f"{at}.v_proj": kv}
        self._qkv = checkpoint.linear(names, width, c.attention_bias, bits)
        self._out = checkpoint.linear({f"{at}.o_proj": c.hidden_size}, q, c.output_bias, bits)
        self._norms = [checkpoint.norm(f"{at}.{n}_norm", c.head_dim, c.rms_eps) for n in ("qk" if c.qk_norm else "")]

    @property
    def arrays(self) -> list[mx.array]:
        """Its weights."""
        return [*self._qkv.arrays, *self._out.arrays, *(norm.weight for norm in self._norms)]

    def __call__(self, x: mx.array, layer: int, start: int, store: Store) -> mx.array:
        """[M, width] -> [M, H], of the positions start .. start + M - 1."""
        rows = x.shape[0]
        heads = self._qkv(x).reshape(1, rows, self._heads + 2 * self._kv, -1).transpose(0, 2, 1, 3)
        q, k, v = mx.split(heads, [self._heads, self._heads + self._kv], axis=1)
        if self._norms:
            q, k = self._norms[0](q), self._norms[1](k)
        keys, values = store(layer, self._turn(k, start), v)
        mask = "causal" if rows > 1 else None  # aligned to the last key
        y = mx.fast.scaled_dot_product_attention(self._turn(q, start), keys, values, scale=self._scale, mask=mask)
        return self._out(y.transpose(0, 2, 1, 3).reshape(rows, -1))


@dataclass(frozen=True, slots=True)
class Layer:
    """A decoder layer without its first norms."""

    attention: Attention
    post_norm: Norm
    gate_up: Linear
    down: Linear

    @property
    def arrays(self) -> list[mx.array]:
        """Its weights."""
        return [*self.attention.arrays, self.post_norm.weight, *self.gate_up.arrays, *self.down.arrays]

    def __call__(self, normed: mx.array, residual: mx.array, layer: int, start: int, store: Store) -> mx.array:
        """The layer's output [M, H]; `normed` is what its attention reads."""
        x = residual + self.attention(normed, layer, start, store)
        gate, up = mx.split(self.gate_up(self.post_norm(x)), 2, axis=-1)
        return x + self.down(nn.silu(gate) * up)


class DraftHead:
    """The head's weights, its cache, and its pass.

    Args:
        file: Its tensors, see layout.draft_tensors; matrices may be MLX affine.
        target: Lends its raw embedding rows, and its head when the draft has none.
        capacity: Positions.
        dtype: Of the activations.
        bits: What its dense matrices are packed in.

    Raises:
        BundleError: A tensor is missing or misshapen.
        BackendError: Its rope is not known here.
    """

    def __init__(
        self, config: DraftConfig, file: Path, target: Lender, capacity: int, dtype: mx.Dtype, bits: Bits = DENSE
    ) -> None:
        self.config = c = config
        self._bits = bits
        checkpoint = Checkpoint(file, dtype)
        width, eps = c.hidden_size, c.rms_eps
        turn = Turn(c.rope, c.head_dim)
        self.cache = DraftCache(c.num_layers, c.num_kv_heads, c.head_dim, capacity, dtype)
        self._fc = checkpoint.linear({"fc": width}, c.tap_width, c.fc_bias, bits.most)
        tapped = range(len(c.taps) if c.fc_norm else 0)
        self._tap_norms = [checkpoint.norm(f"fc_norm.{i}", c.target_hidden_size, eps) for i in tapped]
        self._input_norm = checkpoint.norm("input_norm", c.tap_width, eps) if c.norm_before_fc else None
        self._hidden_norm = checkpoint.norm("layers.0.hidden_norm", width, eps)
        indices = range(c.num_layers)
        self._input_norms = [checkpoint.norm(f"layers.{i}.input_layernorm", width, eps) for i in indices]
        self._layers = [self._layer(checkpoint, i, turn) for i in indices]
        self._norm = checkpoint.norm("norm", width, eps)
        lm_head = checkpoint.linear({"lm_head": c.draft_vocab_size}, width, bits=bits.few) if c.own_head else None
        table = checkpoint.matrix("embed_tokens", target.vocab_size, width) if c.own_embedding else None
        self._lm_head: Rows = target.head if lm_head is None else lm_head
        self._embed: Rows = target.embed_rows if table is None else table.rows
        self.target_ids = checkpoint.tensor(TARGET_IDS, c.draft_vocab_size).astype(mx.int32)  # of each draft id
        self._arrays = [*self._own(), *(lm_head.arrays if lm_head else ()), *(table.arrays if table else ())]
        mx.eval(self._arrays, self.target_ids, self.cache.arrays)

    def _layer(self, checkpoint: Checkpoint, index: int, turn: Turn) -> Layer:
        """The first one reads embedding and feature side by side."""
        c, at = self.config, f"layers.{index}"
        width, inner, few = c.hidden_size, c.intermediate_size, self._bits.few
        return Layer(
            Attention(c, checkpoint, f"{at}.self_attn", width if index else 2 * width, turn, self._bits.most),
            checkpoint.norm(f"{at}.post_attention_layernorm", width, c.rms_eps),
            checkpoint.linear({f"{at}.mlp.{n}_proj": inner for n in ("gate", "up")}, width, c.mlp_bias, few),
            checkpoint.linear({f"{at}.mlp.down_proj": width}, inner, c.mlp_bias, few),
        )

    def _own(self) -> Iterator[mx.array]:
        norms = [*self._tap_norms, *self._input_norms, self._hidden_norm, self._norm]
        for part in (self._fc, *self._layers, *norms, *([self._input_norm] if self._input_norm else [])):
            yield from part.arrays

    @property
    def nbytes(self) -> int:
        """Bytes of its own weights and its cache."""
        return sum(array.nbytes for array in (*self._arrays, *self.cache.arrays))

    def fuse(self, taps: mx.array) -> mx.array:
        """Features [M, H] of target positions from their taps [M, A * Ht]."""
        if self._tap_norms:
            parts = mx.split(taps, len(self._tap_norms), axis=-1)
            taps = mx.concatenate([norm(part) for norm, part in zip(self._tap_norms, parts, strict=True)], axis=-1)
        if self._input_norm is not None:
            taps = self._input_norm(taps)
        return self._fc(taps)

    def confirm(self, tokens: mx.array, taps: mx.array) -> mx.array:
        """Take confirmed rows into the cache: tokens [M], each the one after its position, taps [M, A * Ht].

        Returns:
            [M, H], before the final norm.
        """
        out = self._pass(tokens, self.fuse(taps), self.cache.rows, self.cache.confirm)
        self.cache.advance(tokens.shape[0])
        return out

    def draft(self, token: mx.array, feature: mx.array) -> mx.array:
        """One row [1, H] of the head's own: a drafted token [1] and the feature [1, H] of the position before it."""
        return self._pass(token, feature, self.cache.rows + self.cache.drafted, self.cache.draft)

    def _pass(self, tokens: mx.array, features: mx.array, start: int, store: Store) -> mx.array:
        normed = self._hidden_norm(features)
        x = mx.concatenate((self._input_norms[0](self._embed(tokens)), normed), axis=-1)
        x = self._layers[0](x, normed if self.config.norm_before_residual else features, 0, start, store)
        for index in range(1, len(self._layers)):
            x = self._layers[index](self._input_norms[index](x), x, index, start, store)
        return x

    def propose(self, out: mx.array) -> tuple[mx.array, mx.array]:
        """Of the last row of a pass: float32 logits [1, Vd] and the feature [1, H] of the next row."""
        last = out[-1:]
        normed = self._norm(last)
        return self._lm_head(normed).astype(mx.float32), normed if self.config.norm_output else last
