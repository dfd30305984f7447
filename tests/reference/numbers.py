"""What every layer is made of: norms, activations, linear maps, attention, a gated MLP. Rows are positions."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Weights = Mapping[str, Array]


def rms_norm(x: Array, weight: Array | float, eps: float) -> Array:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def linear(x: Array, w: Weights, module: str) -> Array:
    """x W^T + b of a module; b where the checkpoint has one."""
    y = x @ w[f"{module}.weight"].T
    bias = w.get(f"{module}.bias")
    return y if bias is None else y + bias


def softmax(x: Array) -> Array:
    """Over the last axis; -inf has probability 0."""
    y = np.exp(x - x.max(-1, keepdims=True))
    return y / y.sum(-1, keepdims=True)


def activate(x: Array, name: str) -> Array:
    """ "silu", or "gelu_tanh" (the tanh approximation)."""
    if name == "silu":
        return x / (1.0 + np.exp(-x))
    assert name == "gelu_tanh", name
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


def mlp(x: Array, w: Weights, at: str, activation: str) -> Array:
    """down(act(gate x) * up x)."""
    gate = activate(linear(x, w, f"{at}.gate_proj"), activation)
    return linear(gate * linear(x, w, f"{at}.up_proj"), w, f"{at}.down_proj")


def by_head(x: Array, head_dim: int) -> Array:
    """[n, heads * d] as [heads, n, d]."""
    return x.reshape(len(x), -1, head_dim).transpose(1, 0, 2)


def attend(q: Array, k: Array, v: Array, scale: float, window: int = 0, sinks: Array | None = None) -> Array:
    """Causal grouped-query attention, q [heads, n, d], k and v [kv, n, d] -> [n, heads * d].

    Args:
        window: A position sees itself and window - 1 before it; 0: all before it.
        sinks: [heads] one more score each, whose mass goes nowhere.
    """
    heads, n, d = q.shape
    k, v = (np.repeat(y, heads // len(y), 0) for y in (k, v))
    age = np.arange(n)[:, None] - np.arange(n)[None, :]
    seen = (age >= 0) & ((age < window) if window else True)
    scores = np.where(seen, q @ k.transpose(0, 2, 1) * scale, -np.inf)
    if sinks is not None:
        scores = np.concatenate((scores, np.broadcast_to(sinks[:, None, None], (heads, n, 1))), -1)
    y = softmax(scores)[..., :n] @ v
    return y.transpose(1, 0, 2).reshape(n, heads * d)
