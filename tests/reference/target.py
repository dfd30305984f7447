"""The target: one decoder for every family, read from `TargetConfig`'s flags as transformers' models have them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from eagle3chat.engine.config import TargetConfig
from reference.experts import has_experts, mixture
from reference.numbers import Array, Weights, activate, attend, by_head, linear, mlp, rms_norm
from reference.rope import rotate

KeysAndValues = tuple[Array, Array]


class TargetTruth:
    """A target's logits and residual streams.

    Args:
        weights: Under Hugging Face's names.
    """

    def __init__(self, config: TargetConfig, weights: Weights) -> None:
        self.config, self.weights = config, weights

    def __call__(self, tokens: Sequence[int]) -> tuple[Array, list[Array]]:
        """Logits [n, V], and the residual stream [n, Ht] at boundaries 0..num_layers."""
        c, w = self.config, self.weights
        x = w["model.embed_tokens.weight"][list(tokens)] * c.embed_scale
        inputs = self._layer_inputs(tokens, x) if c.layer_input_size else None
        streams, caches = [x], {}
        for index in range(c.num_layers):
            x = self._layer(x, index, caches)
            if inputs is not None:
                x = self._with_input(x, inputs[:, index], f"model.layers.{index}")
            if c.layer_scalar:
                x = x * w[f"model.layers.{index}.layer_scalar"]
            streams.append(x)
        logits = self._norm(x, "model.norm") @ self.head.T
        if c.logit_softcap:
            logits = np.tanh(logits / c.logit_softcap) * c.logit_softcap
        return logits, streams

    @property
    def head(self) -> Array:
        """[V, Ht]."""
        return self.weights["model.embed_tokens.weight" if self.config.tie_embeddings else "lm_head.weight"]

    def _norm(self, x: Array, module: str) -> Array:
        return rms_norm(x, self.config.norm_offset + self.weights[f"{module}.weight"], self.config.rms_eps)

    def _layer(self, x: Array, index: int, caches: dict[int, KeysAndValues]) -> Array:
        c, w, at = self.config, self.weights, f"model.layers.{index}"
        y = self._attention(self._norm(x, f"{at}.input_layernorm"), index, caches)
        if not c.sandwich_norms:
            x = x + y
            y = self._norm(x, f"{at}.post_attention_layernorm")
            return x + (self._experts(y, at) if has_experts(w, at) else mlp(y, w, f"{at}.mlp", c.activation))
        x = x + self._norm(y, f"{at}.post_attention_layernorm")
        y = mlp(self._norm(x, f"{at}.pre_feedforward_layernorm"), w, f"{at}.mlp", c.activation)
        if has_experts(w, at):
            y = self._norm(y, f"{at}.post_feedforward_layernorm_1")
            y = y + self._norm(self._experts(x, at), f"{at}.post_feedforward_layernorm_2")
        return x + self._norm(y, f"{at}.post_feedforward_layernorm")

    def _experts(self, x: Array, at: str) -> Array:
        c = self.config
        assert c.experts is not None
        return mixture(x, self.weights, at, c.experts, c.activation, c.rms_eps)

    def _attention(self, y: Array, index: int, caches: dict[int, KeysAndValues]) -> Array:
        c, w, at = self.config, self.weights, f"model.layers.{index}.self_attn"
        kind = c.kind(index)
        q = by_head(linear(y, w, f"{at}.q_proj"), kind.head_dim)
        if c.qk_norm:
            q = self._norm(q, f"{at}.q_norm")
        source = c.cache_layer(index)
        if source == index:
            k = by_head(linear(y, w, f"{at}.k_proj"), kind.head_dim)
            v = k if kind.key_is_value else by_head(linear(y, w, f"{at}.v_proj"), kind.head_dim)
            k = self._norm(k, f"{at}.k_norm") if c.qk_norm else k
            v = rms_norm(v, 1.0, c.rms_eps) if c.value_norm else v
            caches[index] = rotate(k, kind.rope), v
        k, v = caches[source]
        scale = c.attention_scale or 1.0 / math.sqrt(kind.head_dim)
        sinks = w[f"{at}.sinks"] if c.sinks else None
        return linear(attend(rotate(q, kind.rope), k, v, scale, kind.window, sinks), w, f"{at}.o_proj")

    def _layer_inputs(self, tokens: Sequence[int], x: Array) -> Array:
        """Gemma 4 E: what each layer hears of the tokens themselves, [n, layers, size]."""
        c, w = self.config, self.weights
        shape = (len(x), c.num_layers, c.layer_input_size)
        own = w["model.embed_tokens_per_layer.weight"][list(tokens)].reshape(shape) * math.sqrt(c.layer_input_size)
        made = linear(x, w, "model.per_layer_model_projection").reshape(shape) / math.sqrt(c.hidden_size)
        return (self._norm(made, "model.per_layer_projection_norm") + own) / math.sqrt(2.0)

    def _with_input(self, x: Array, heard: Array, at: str) -> Array:
        w = self.weights
        y = activate(linear(x, w, f"{at}.per_layer_input_gate"), self.config.activation) * heard
        return x + self._norm(linear(y, w, f"{at}.per_layer_projection"), f"{at}.post_per_layer_input_norm")
