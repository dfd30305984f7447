"""The EAGLE-3 head: one decoder layer that proposes tokens from the target's taps.

A row pairs the feature of a position with the embedding of the token after it, and predicts the one
after that. Where a feature comes from decides how it enters: taps go through `fuse`, the head's own output
through `feedback`; never told from widths, which may be equal. Source of the layer: Li et al., "EAGLE-3"
(2025). Knows no rounds and no choice of tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from eagle3chat.engine.config import DraftConfig
from eagle3chat.engine.torch_cache import KvCache
from eagle3chat.engine.torch_layers import Attention, GatedMlp, Norm
from eagle3chat.engine.torch_linear import Linear, embedding, few_bits, linear
from eagle3chat.engine.torch_rope import Angles
from eagle3chat.engine.torch_target import Precision, Target
from eagle3chat.engine.torch_weights import Checkpoint, dense
from eagle3chat.kernels import cpu_linear

ATTENTION, MLP = "layers.0.self_attn", "layers.0.mlp"


class DraftHead:
    """The head's weights, its one-layer cache, and its pass.

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
        self.cache = KvCache(1, c.num_kv_heads, c.head_dim, capacity, dtype, device)
        width = c.hidden_size
        self.fc = self._linear("", {"fc": width}, len(c.taps) * c.target_hidden_size)
        self.tap_norms = [
            self._norm(f"fc_norm.{i}", c.target_hidden_size) for i in range(len(c.taps) if c.fc_norm else 0)
        ]
        self.input_norm = self._norm("input_norm", len(c.taps) * c.target_hidden_size) if c.norm_before_fc else None
        self.embed_norm = self._norm("layers.0.input_layernorm", width)
        self.hidden_norm = self._norm("layers.0.hidden_norm", width)
        self.post_norm = self._norm("layers.0.post_attention_layernorm", width)
        self.norm = self._norm("norm", width)
        self.attention = self._attention()
        self.attention.bind(self.cache, 0, self.angles)
        gate_up = self._linear(f"{MLP}.", {"gate_proj": c.intermediate_size, "up_proj": c.intermediate_size}, width)
        down = self._linear(f"{MLP}.", {"down_proj": width}, c.intermediate_size)
        self.mlp = GatedMlp(gate_up, down, "silu", c.intermediate_size, dtype, device)
        self.head = self._linear("", {"lm_head": c.draft_vocab_size}, width) if c.own_head else target.head
        self.embed: Callable[[Tensor], Tensor] = target.embed
        own = 0
        if c.own_embedding:
            rows = checkpoint.weight("embed_tokens", target.config.vocab_size, width)
            self.embed = embedding(rows, None, dtype=dtype, device=device)
            own = self.embed.nbytes
        # Absolute ids: target id of each draft id.
        self.target_ids = checkpoint.tensor("target_ids", c.draft_vocab_size).to(device).clone()
        self.nbytes = own + self.fc.nbytes + self.attention.nbytes + self.mlp.nbytes + self.cache.nbytes
        self.nbytes += self.head.nbytes if c.own_head else 0
        del self._checkpoint

    def _norm(self, module: str, width: int) -> Norm:
        weight = self._checkpoint.tensor(f"{module}.weight", width)
        return Norm(weight.to(self._precision.device, self._precision.dtype).clone(), self.config.rms_eps)

    def _linear(self, prefix: str, names: dict[str, int], columns: int, biased: bool = False) -> Linear:
        """The stacked weights of `names` (name -> rows).

        Beside an int4 target head and MLP have 4 bits and the rest 8. A draft's weights are cold in every round, since
        the target's go through the caches in between, so bytes cost more here than the little acceptance (tau 1.51 for
        1.55). Without the compiled kernels all have 8 but the head, which keeps 16: torch's 8-bit kernel is slower
        there than the reordered dense one.
        """
        p = self._precision
        parts = [self._checkpoint.weight(f"{prefix}{name}", rows, columns) for name, rows in names.items()]
        bias = None
        if biased:
            bias = torch.cat([self._checkpoint.tensor(f"{prefix}{n}.bias", r) for n, r in names.items()])
        head = "lm_head" in names
        if p.int4 and (cpu_linear.usable() or not head):
            bits = 4 if head or prefix.startswith(MLP) else 8
            return few_bits(torch.cat([dense(part) for part in parts]), bias, bits=bits, wide=head)
        return linear(parts, int4=p.int4, dtype=p.dtype, device=p.device, bias=bias)

    def _attention(self) -> Attention:
        c = self.config
        q, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        names = {"q_proj": q, "k_proj": kv, "v_proj": kv}
        qkv = self._linear(f"{ATTENTION}.", names, 2 * c.hidden_size, c.attention_bias)
        out = self._linear(f"{ATTENTION}.", {"o_proj": c.hidden_size}, q)
        norms = [self._norm(f"{ATTENTION}.{n}_norm", c.head_dim) if c.qk_norm else None for n in "qk"]
        return Attention(qkv, out, c.num_heads, c.num_kv_heads, c.head_dim, *norms)

    def fuse(self, taps: Tensor) -> Tensor:
        """Features [M, H] of target positions from their taps [M, A * Ht]."""
        if self.tap_norms:
            chunks = taps.chunk(len(self.tap_norms), -1)
            taps = torch.cat([norm(chunk) for norm, chunk in zip(self.tap_norms, chunks, strict=True)], -1)
        if self.input_norm is not None:
            taps = self.input_norm(taps)
        return self.fc(taps)

    def __call__(self, tokens: Tensor, features: Tensor, start: int) -> Tensor:
        """One pass: rows start .. start + M - 1 of the cache are written, and not counted.

        Args:
            tokens: [M], row m's is the token at position start + m + 1.
            features: [M, H] of the positions themselves.

        Returns:
            [M, H], before the final norm.
        """
        normed = self.hidden_norm(features)
        x = torch.cat((self.embed_norm(self.embed(tokens)), normed), -1)
        span = self.attention.span(start, tokens.shape[0], self.angles, x.dtype, x.device)
        residual = normed if self.config.norm_before_residual else features
        x, normed = self.post_norm.add(residual, self.attention(x, self.cache, 0, span))
        return x + self.mlp(normed)

    def propose(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """Of the last row of a pass: float32 logits [1, Vd] and the feature [1, H] of the next row."""
        last = out[-1:]
        normed = self.norm(last)
        return self.head(normed).float(), normed if self.config.norm_output else last
