"""The EAGLE-3 head: a decoder of one layer, sometimes a few, that proposes tokens from the target's taps.

A row pairs the feature of a position with the embedding of the token after it, and predicts the one
after that. Where a feature comes from decides how it enters: taps go through `fuse`, the head's own output
through `propose`; never told from widths, which may be equal. Source of the first layer: Li et al., "EAGLE-3"
(2025); those after it are ordinary. Knows no rounds and no choice of tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3chat.engine.config import DraftConfig
from eagle3chat.engine.torch_cache import KvCache
from eagle3chat.engine.torch_layers import Attention, GatedMlp, Norm
from eagle3chat.engine.torch_linear import Linear, embedding, few_bits, linear
from eagle3chat.engine.torch_rope import Angles
from eagle3chat.engine.torch_span import Place
from eagle3chat.engine.torch_target import Precision, Target
from eagle3chat.engine.torch_weights import Affine, Checkpoint, dense
from eagle3chat.kernels import cpu_linear


@dataclass(frozen=True, slots=True)
class LaterLayer:
    """A layer after the first: pre-norm, of width H."""

    input_norm: Norm
    attention: Attention
    post_norm: Norm
    mlp: GatedMlp


class DraftHead:
    """The head's weights, its cache, and its pass. `attention`, `post_norm` and `mlp` are those of the first layer.

    Args:
        target: Lends its raw embedding rows, and its head when the draft has none.
        capacity: Positions.
    """

    def __init__(
        self, config: DraftConfig, checkpoint: Checkpoint, target: Target, capacity: int, precision: Precision
    ) -> None:
        self.config, self._checkpoint, self._precision = config, checkpoint, precision
        c, dtype, device = config, precision.dtype, precision.device
        self.angles = Angles(c.rope, c.head_dim, c.num_heads + c.num_kv_heads, c.num_kv_heads, capacity, dtype, device)
        self.cache = KvCache(c.num_layers, c.num_kv_heads, c.head_dim, capacity, dtype, device)
        width = c.hidden_size
        self.fc = self._linear("", {"fc": width}, c.tap_width, c.fc_bias)
        self.tap_norms = [
            self._norm(f"fc_norm.{i}", c.target_hidden_size) for i in range(len(c.taps) if c.fc_norm else 0)
        ]
        self.input_norm = self._norm("input_norm", c.tap_width) if c.norm_before_fc else None
        self.embed_norm = self._norm("layers.0.input_layernorm", width)
        self.hidden_norm = self._norm("layers.0.hidden_norm", width)
        self.attention, self.post_norm, self.mlp = self._layer(0)
        self.later = [
            LaterLayer(self._norm(f"layers.{i}.input_layernorm", width), *self._layer(i))
            for i in range(1, c.num_layers)
        ]
        self.norm = self._norm("norm", width)
        self.head = self._linear("", {"lm_head": c.draft_vocab_size}, width) if c.own_head else target.head
        self.embed: Callable[[Tensor], Tensor] = target.embed
        own = 0
        if c.own_embedding:
            rows = checkpoint.weight("embed_tokens", target.config.vocab_size, width)
            self.embed = embedding(rows, None, dtype=dtype, device=device)
            own = self.embed.nbytes
        # Absolute ids: target id of each draft id.
        self.target_ids = checkpoint.tensor("target_ids", c.draft_vocab_size).to(device).clone()
        layers = [self, *self.later]
        self.nbytes = own + self.fc.nbytes + self.cache.nbytes
        self.nbytes += sum(layer.attention.nbytes + layer.mlp.nbytes for layer in layers)
        self.nbytes += self.head.nbytes if c.own_head else 0
        del self._checkpoint

    def _norm(self, module: str, width: int) -> Norm:
        weight = self._checkpoint.tensor(f"{module}.weight", width)
        return Norm(weight.to(self._precision.device, self._precision.dtype).clone(), self.config.rms_eps)

    def _linear(self, prefix: str, names: dict[str, int], columns: int, biased: bool = False) -> Linear:
        """The stacked weights of `names` (name -> rows); quantised ones stay as they are stored.

        Dense ones, beside an int4 target, get 4 bits. A draft's weights are cold in every round, since the target's go
        through the caches in between, so bytes cost more here than the little acceptance. Without the compiled
        kernels all have 8 but the head, which keeps 16: torch's 8-bit kernel is slower there than the reordered dense
        one.
        """
        p = self._precision
        parts = [self._checkpoint.weight(f"{prefix}{name}", rows, columns) for name, rows in names.items()]
        bias = None
        if biased:
            bias = torch.cat([self._checkpoint.tensor(f"{prefix}{n}.bias", r) for n, r in names.items()])
        head = "lm_head" in names
        if all(isinstance(part, Affine) for part in parts):
            return linear(parts, int4=p.int4, dtype=p.dtype, device=p.device, bias=bias, wide=head)
        if p.int4 and (p.device.type != "cpu" or cpu_linear.usable() or not head):
            return few_bits(torch.cat([dense(part) for part in parts]), bias, bits=4, wide=head, device=p.device)
        return linear(parts, int4=p.int4, dtype=p.dtype, device=p.device, bias=bias)

    def _layer(self, index: int) -> tuple[Attention, Norm, GatedMlp]:
        """A layer without its first norms; the first one reads embedding and feature side by side."""
        c, at, width = self.config, f"layers.{index}", self.config.hidden_size
        q, kv, inner = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim, c.intermediate_size
        names = {"q_proj": q, "k_proj": kv, "v_proj": kv}
        qkv = self._linear(f"{at}.self_attn.", names, width if index else 2 * width, c.attention_bias)
        out = self._linear(f"{at}.self_attn.", {"o_proj": width}, q, c.output_bias)
        norms = [self._norm(f"{at}.self_attn.{n}_norm", c.head_dim) if c.qk_norm else None for n in "qk"]
        attention = Attention(qkv, out, c.num_heads, c.num_kv_heads, c.head_dim, *norms)
        attention.bind(self.cache, index, self.angles)
        gate_up = self._linear(f"{at}.mlp.", {"gate_proj": inner, "up_proj": inner}, width, c.mlp_bias)
        down = self._linear(f"{at}.mlp.", {"down_proj": width}, inner, c.mlp_bias)
        mlp = GatedMlp(gate_up, down, "silu", inner, self._precision.dtype, self._precision.device)
        return attention, self._norm(f"{at}.post_attention_layernorm", width), mlp

    def fuse(self, taps: Tensor) -> Tensor:
        """Features [M, H] of target positions from their taps [M, A * Ht]."""
        if self.tap_norms:
            chunks = taps.chunk(len(self.tap_norms), -1)
            taps = torch.cat([norm(chunk) for norm, chunk in zip(self.tap_norms, chunks, strict=True)], -1)
        if self.input_norm is not None:
            taps = self.input_norm(taps)
        return self.fc(taps)

    def __call__(self, tokens: Tensor, features: Tensor, start: int | Place) -> Tensor:
        """One pass: rows start .. start + M - 1 of the cache are written, and not counted.

        Args:
            tokens: [M], row m's is the token at position start + m + 1.
            features: [M, H] of the positions themselves.

        Returns:
            [M, H], before the final norm.
        """
        normed = self.hidden_norm(features)
        x = torch.cat((self.embed_norm(self.embed(tokens)), normed), -1)
        if isinstance(start, Place):
            span = self.attention.span_at(start, tokens.shape[0], self.angles, x.dtype)
        else:
            span = self.attention.span(start, tokens.shape[0], self.angles, x.dtype, x.device)
        residual = normed if self.config.norm_before_residual else features
        x, normed = self.post_norm.add(residual, self.attention(x, self.cache, 0, span))
        x = x + self.mlp(normed)
        for index, layer in enumerate(self.later, 1):
            y = layer.attention(layer.input_norm(x), self.cache, index, span)
            x, normed = layer.post_norm.add(x, y)
            x = x + layer.mlp(normed)
        return x

    def propose(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """Of the last row of a pass: float32 logits [1, Vd] and the feature [1, H] of the next row."""
        last = out[-1:]
        normed = self.norm(last)
        return self.head(normed).float(), normed if self.config.norm_output else last
