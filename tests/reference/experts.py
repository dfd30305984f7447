"""Mixtures of experts: every expert is computed for every row, and weighted, most of them with 0."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from eagle3chat.engine.config import Experts
from reference.numbers import Array, Weights, activate, linear, rms_norm, softmax

SIGMOID_GAIN = 1.702  # gpt-oss


def has_experts(w: Weights, at: str) -> bool:
    """Whether the layer `at` has a router."""
    return any(f"{at}.{name}.weight" in w for name in ("mlp.gate", "mlp.router", "router.proj"))


def mixture(x: Array, w: Weights, at: str, c: Experts, activation: str, eps: float) -> Array:
    """The experts' part of the layer `at`.

    Args:
        x: [n, width]: the normed stream; gemma4: the stream itself, which router and experts norm on their own.
        eps: Of gemma4's norms.
    """
    if c.kind == "qwen3":
        shares = _softmax_first(linear(x, w, f"{at}.mlp.gate"), c)
        return _blend(shares, [_gated(x, *_split(w, f"{at}.mlp", e), activation) for e in range(c.count)])
    if c.kind == "gpt_oss":
        shares = _topk_first(linear(x, w, f"{at}.mlp.router"), c)
        return _blend(shares, [_gpt_oss(x, w, f"{at}.mlp.experts", e, c.limit) for e in range(c.count)])
    assert c.kind == "gemma4", c.kind
    heard = rms_norm(x, w[f"{at}.router.scale"], eps) * x.shape[-1] ** -0.5
    shares = _softmax_first(linear(heard, w, f"{at}.router.proj"), c) * w[f"{at}.router.per_expert_scale"]
    y = rms_norm(x, w[f"{at}.pre_feedforward_layernorm_2.weight"], eps)
    return _blend(shares, [_gated(y, *_split(w, f"{at}.experts", e), activation) for e in range(c.count)])


def _blend(shares: Array, outputs: list[Array]) -> Array:
    """sum_e shares[:, e] * outputs[e]."""
    return sum(shares[:, e, None] * y for e, y in enumerate(outputs))


def _largest(scores: Array, count: int) -> npt.NDArray[np.bool_]:
    """Where the `count` largest of each row are."""
    chosen = np.zeros(scores.shape, bool)
    np.put_along_axis(chosen, np.argsort(-scores, -1, kind="stable")[:, :count], True, -1)
    return chosen


def _softmax_first(scores: Array, c: Experts) -> Array:
    """The largest probabilities over all experts, made to sum to 1 where the model says so."""
    p = softmax(scores)
    p = np.where(_largest(p, c.per_token), p, 0.0)
    return p / p.sum(-1, keepdims=True) if c.normalize else p


def _topk_first(scores: Array, c: Experts) -> Array:
    """Softmax over the largest scores alone."""
    return softmax(np.where(_largest(scores, c.per_token), scores, -np.inf))


def _split(w: Weights, at: str, expert: int) -> tuple[Array, Array, Array]:
    """Gate, up [I, width] and down [width, I] of an expert: of its own, from a bundle's stacks, or Gemma's."""
    if f"{at}.experts.{expert}.gate_proj.weight" in w:
        return tuple(w[f"{at}.experts.{expert}.{name}_proj.weight"] for name in ("gate", "up", "down"))
    for stacks in (f"{at}.switch_mlp", f"{at}.switch_glu"):
        if f"{stacks}.gate_proj.weight" in w:
            return tuple(w[f"{stacks}.{name}_proj.weight"][expert] for name in ("gate", "up", "down"))
    gate, up = np.split(w[f"{at}.gate_up_proj"][expert], 2)
    return gate, up, w[f"{at}.down_proj"][expert]


def _gated(x: Array, gate: Array, up: Array, down: Array, activation: str) -> Array:
    return (activate(x @ gate.T, activation) * (x @ up.T)) @ down.T


def _gpt_oss(x: Array, w: Weights, at: str, expert: int, limit: float) -> Array:
    """Both are clamped, and up is counted from -1. In a checkpoint they lie in turns, in a bundle apart."""
    if f"{at}.gate_proj.weight" in w:
        gate, up = (x @ w[f"{at}.{n}_proj.weight"][expert].T + w[f"{at}.{n}_proj.bias"][expert] for n in ("gate", "up"))
        down, bias = w[f"{at}.down_proj.weight"][expert].T, w[f"{at}.down_proj.bias"][expert]
        return _oai(gate, up, limit) @ down + bias
    both = x @ w[f"{at}.gate_up_proj"][expert] + w[f"{at}.gate_up_proj_bias"][expert]
    y = _oai(both[:, ::2], both[:, 1::2], limit)
    return y @ w[f"{at}.down_proj"][expert] + w[f"{at}.down_proj_bias"][expert]


def _oai(gate: Array, up: Array, limit: float) -> Array:
    gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    return (up + 1.0) * gate / (1.0 + np.exp(-SIGMOID_GAIN * gate))
