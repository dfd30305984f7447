"""The EAGLE-3 draft, every flag of `DraftConfig`, over all rows at once. Source of the layer: Li et al. (2025)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from eagle3chat.engine.config import DraftConfig
from reference.numbers import Array, Weights, attend, by_head, linear, mlp, rms_norm
from reference.rope import rotate


class DraftTruth:
    """A draft's features, rows and logits.

    Args:
        weights: Under canonical names.
        rows: The target's raw embedding [V, Ht], and its head [V, Ht], for a draft without its own.
    """

    def __init__(self, config: DraftConfig, weights: Weights, rows: Array, head: Array) -> None:
        self.config, self.weights = config, weights
        self.rows = weights["embed_tokens.weight"] if config.own_embedding else rows
        self.head = weights["lm_head.weight"] if config.own_head else head
        self.target_ids = [int(token) for token in weights["target_ids"]]

    def _norm(self, x: Array, module: str) -> Array:
        return rms_norm(x, self.weights[f"{module}.weight"], self.config.rms_eps)

    def fuse(self, taps: Sequence[Array]) -> Array:
        """Features [n, H] of target positions from the streams [n, Ht] at the taps."""
        c = self.config
        parts = [self._norm(tap, f"fc_norm.{i}") for i, tap in enumerate(taps)] if c.fc_norm else list(taps)
        x = np.concatenate(parts, -1)
        return linear(self._norm(x, "input_norm") if c.norm_before_fc else x, self.weights, "fc")

    def outputs(self, features: Array, tokens: Sequence[int]) -> Array:
        """All rows, feature i beside token i, [n, H]; before the final norm."""
        c, w = self.config, self.weights
        e = self._norm(self.rows[list(tokens)], "layers.0.input_layernorm")
        g = self._norm(features, "layers.0.hidden_norm")
        x = g if c.norm_before_residual else features
        x = self._rest(x + self._attention(np.concatenate((e, g), -1), 0), 0)
        for index in range(1, c.num_layers):
            x = self._rest(x + self._attention(self._norm(x, f"layers.{index}.input_layernorm"), index), index)
        assert f"layers.{c.num_layers}.self_attn.q_proj.weight" not in w
        return x

    def _attention(self, y: Array, index: int) -> Array:
        c, w, at = self.config, self.weights, f"layers.{index}.self_attn"
        q, k, v = (by_head(linear(y, w, f"{at}.{name}_proj"), c.head_dim) for name in "qkv")
        if c.qk_norm:
            q, k = self._norm(q, f"{at}.q_norm"), self._norm(k, f"{at}.k_norm")
        y = attend(rotate(q, c.rope), rotate(k, c.rope), v, 1.0 / math.sqrt(c.head_dim))
        return linear(y, w, f"{at}.o_proj")

    def _rest(self, x: Array, index: int) -> Array:
        y = self._norm(x, f"layers.{index}.post_attention_layernorm")
        return x + mlp(y, self.weights, f"layers.{index}.mlp", "silu")

    def said(self, out: Array) -> tuple[Array, Array]:
        """Logits [n, Vd] of outputs [n, H], and the features [n, H] that the next rows get."""
        normed = self._norm(out, "norm")
        return normed @ self.head.T, normed if self.config.norm_output else out
