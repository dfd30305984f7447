"""The slow truth: target, draft and a round in NumPy float64, without a cache, from a bundle's files.

Everything is recomputed from the token list each time it is asked for. It shares no code with a backend
but the values (`config`, `sampling`), so a fault would have to be made twice to go unseen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from eagle3chat.engine.bundle import read_manifest
from eagle3chat.engine.config import Rope
from eagle3chat.engine.sampling import Sampling, choose, filtered, gumbel_row, softmax

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Truth:
    """What a round should say; the names are those of `Verdict`."""

    drafted: tuple[int, ...]
    draft_p: tuple[float, ...]
    target_p: tuple[float, ...]
    chosen: tuple[int, ...]
    chosen_p: tuple[float, ...]
    runners_up: tuple[tuple[tuple[int, float], ...], ...]
    margin: tuple[float, ...]


class Reference:
    """A bundle's pair.

    Args:
        bundle: Its directory; tensors F32, F16, or MLX affine of 4 or 8 bits.
    """

    def __init__(self, bundle: Path) -> None:
        self.manifest = read_manifest(bundle)
        self.target_weights = _dense(load_file(bundle / "target" / "model.safetensors"))
        draft = bundle / "draft" / "model.safetensors"
        self.draft_weights = _dense(load_file(draft)) if draft.is_file() else {}

    # Target

    def target(self, tokens: Sequence[int]) -> tuple[Array, Array]:
        """Logits [n, V] and taps [n, A * Ht] of every position."""
        c, w = self.manifest.target, self.target_weights
        x = w["model.embed_tokens.weight"][list(tokens)] * c.embed_scale
        streams = [x]
        for i in range(c.num_layers):
            at = f"model.layers.{i}"
            y = rms_norm(x, w[f"{at}.input_layernorm.weight"], c.rms_eps)
            heads = (c.num_heads, c.num_kv_heads, c.head_dim)
            x = x + attention(y, w, f"{at}.self_attn", heads, c.rope, c.rms_eps if c.qk_norm else None)
            y = rms_norm(x, w[f"{at}.post_attention_layernorm.weight"], c.rms_eps)
            x = x + mlp(y, w, f"{at}.mlp", c.activation)
            streams.append(x)
        y = rms_norm(x, w["model.norm.weight"], c.rms_eps)
        logits = y @ w["model.embed_tokens.weight" if c.tie_embeddings else "lm_head.weight"].T
        if c.logit_softcap:
            logits = np.tanh(logits / c.logit_softcap) * c.logit_softcap
        taps = self.manifest.draft.taps if self.manifest.draft else ()
        return logits, np.concatenate([streams[b] for b in taps], -1) if taps else np.zeros((len(tokens), 0))

    # Draft

    def fuse(self, taps: Array) -> Array:
        """Features [n, H] of target positions."""
        c, w = self.manifest.draft, self.draft_weights
        if c.fc_norm:
            parts = np.split(taps, len(c.taps), -1)
            taps = np.concatenate([rms_norm(p, w[f"fc_norm.{i}.weight"], c.rms_eps) for i, p in enumerate(parts)], -1)
        if c.norm_before_fc:
            taps = rms_norm(taps, w["input_norm.weight"], c.rms_eps)
        return taps @ w["fc.weight"].T

    def head(self, features: Array, tokens: Sequence[int]) -> Array:
        """The draft's layer over all rows: feature i beside token i, [n, H] each; the output before its final norm."""
        c, w = self.manifest.draft, self.draft_weights
        rows = w["embed_tokens.weight"] if c.own_embedding else self.target_weights["model.embed_tokens.weight"]
        e = rms_norm(rows[list(tokens)], w["layers.0.input_layernorm.weight"], c.rms_eps)
        g = rms_norm(features, w["layers.0.hidden_norm.weight"], c.rms_eps)
        heads = (c.num_heads, c.num_kv_heads, c.head_dim)
        y = attention(
            np.concatenate((e, g), -1), w, "layers.0.self_attn", heads, c.rope, c.rms_eps if c.qk_norm else None
        )
        x = (g if c.norm_before_residual else features) + y
        return x + mlp(rms_norm(x, w["layers.0.post_attention_layernorm.weight"], c.rms_eps), w, "layers.0.mlp", "silu")

    def chain(self, tokens: Sequence[int], length: int, sampling: Sampling) -> tuple[list[int], list[float]]:
        """Proposals for the positions after `tokens`, and the draft's probabilities."""
        c, w = self.manifest.draft, self.draft_weights
        if len(tokens) < 2:
            return [], []
        features = self.fuse(self.target(tokens[:-1])[1])
        beside = list(tokens[1:])
        drafted: list[int] = []
        probabilities: list[float] = []
        for step in range(length):
            out = self.head(features, beside)[-1:]
            normed = rms_norm(out, w["norm.weight"], c.rms_eps)
            head = w.get("lm_head.weight", self.target_weights.get("lm_head.weight"))
            logits = (normed @ head.T)[0] / (sampling.temperature or 1.0)
            p = softmax(logits.tolist())
            place = self._propose(p, len(tokens) + step, sampling)
            drafted.append(int(w["target_ids"][place]))
            probabilities.append(p[place])
            features = np.concatenate((features, normed if c.norm_output else out))
            beside.append(drafted[-1])
        return drafted, probabilities

    def _propose(self, p: list[float], position: int, sampling: Sampling) -> int:
        if sampling.temperature == 0.0:
            return max(range(len(p)), key=p.__getitem__)
        noise = gumbel_row(sampling.seed, position, self.manifest.target.vocab_size)
        ids = self.draft_weights["target_ids"].astype(int).tolist()
        scores = [(math.log(q) if q else -math.inf) / sampling.sharpness + noise[ids[i]] for i, q in enumerate(p)]
        return max(range(len(p)), key=scores.__getitem__)

    # Round

    def round(self, tokens: Sequence[int], length: int, sampling: Sampling) -> Truth:
        """What a backend should say in a round with a chain of `length` after `tokens`."""
        drafted, draft_p = self.chain(tokens, length, sampling) if self.manifest.draft else ([], [])
        logits = self.target([*tokens, *drafted])[0][len(tokens) - 1 :]
        chosen, margins, shapes = [], [], []
        for row, values in enumerate(logits.tolist()):
            position = len(tokens) + row
            chosen.append(choose(values, position, sampling))
            scaled = filtered(values, sampling)
            shapes.append(softmax(scaled))
            if sampling.temperature > 0.0:
                noise = gumbel_row(sampling.seed, position, len(scaled))
                scaled = [x + g for x, g in zip(scaled, noise, strict=True)]
            best, second = sorted(scaled)[:-3:-1]
            margins.append(best - second)
        tops = [sorted(range(len(p)), key=lambda i, p=p: -p[i])[:4] for p in shapes]
        return Truth(
            drafted=tuple(drafted),
            draft_p=tuple(draft_p),
            target_p=tuple(p[t] for p, t in zip(shapes, drafted, strict=False)),
            chosen=tuple(chosen),
            chosen_p=tuple(p[t] for p, t in zip(shapes, chosen, strict=True)),
            runners_up=tuple(tuple((i, p[i]) for i in top if p[i] > 0.0) for top, p in zip(tops, shapes, strict=True)),
            margin=tuple(margins),
        )


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def mlp(x: Array, w: dict[str, Array], at: str, activation: str) -> Array:
    """down(act(gate x) * up x)."""
    gate, up = x @ w[f"{at}.gate_proj.weight"].T, x @ w[f"{at}.up_proj.weight"].T
    if activation == "silu":
        gate = gate / (1.0 + np.exp(-gate))
    else:
        gate = 0.5 * gate * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (gate + 0.044715 * gate**3)))
    return (gate * up) @ w[f"{at}.down_proj.weight"].T


def attention(
    x: Array, w: dict[str, Array], at: str, shape: tuple[int, int, int], rope: Rope, norm_eps: float | None
) -> Array:
    """Causal grouped-query attention over all rows; `norm_eps`: of the q and k norms, None: none."""
    heads, kv_heads, d = shape
    n = len(x)
    q, k, v = (x @ w[f"{at}.{name}_proj.weight"].T + w.get(f"{at}.{name}_proj.bias", 0.0) for name in "qkv")
    q, k, v = (y.reshape(n, -1, d).transpose(1, 0, 2) for y in (q, k, v))  # [heads, n, d]
    if norm_eps is not None:
        q, k = rms_norm(q, w[f"{at}.q_norm.weight"], norm_eps), rms_norm(k, w[f"{at}.k_norm.weight"], norm_eps)
    q, k = rotate(q, rope), rotate(k, rope)
    k, v = np.repeat(k, heads // kv_heads, 0), np.repeat(v, heads // kv_heads, 0)
    scores = q @ k.transpose(0, 2, 1) / math.sqrt(d)
    scores = np.where(np.tril(np.ones((n, n), bool)), scores, -np.inf)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    y = scores / scores.sum(-1, keepdims=True) @ v
    return y.transpose(1, 0, 2).reshape(n, heads * d) @ w[f"{at}.o_proj.weight"].T


def rotate(x: Array, rope: Rope) -> Array:
    """x [heads, n, d] at positions 0..n-1: column j with column j + d/2."""
    d = x.shape[-1]
    angles = np.arange(x.shape[1])[:, None] * np.array([_speed(rope, j, d) for j in range(d // 2)])
    a, b = x[..., : d // 2], x[..., d // 2 :]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate((a * cos - b * sin, b * cos + a * sin), -1)


def _speed(rope: Rope, j: int, d: int) -> float:
    """Radians a position of the pair j, as Llama 3.1's reference code has it."""
    speed = rope.theta ** (-2.0 * j / d)
    if rope.kind == "linear":
        return speed / rope.factor
    if rope.kind == "default":
        return speed
    assert rope.kind == "llama3"
    wave = 2 * math.pi / speed
    if wave > rope.original_max_position / rope.low_freq_factor:
        return speed / rope.factor
    if wave < rope.original_max_position / rope.high_freq_factor:
        return speed
    smooth = (rope.original_max_position / wave - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    return (1.0 - smooth) * speed / rope.factor + smooth * speed


def _dense(tensors: dict[str, npt.NDArray[np.generic]]) -> dict[str, Array]:
    """Float64, affine matrices multiplied out; the first column lies in the lowest bits of a word."""
    weights = {n: t.astype(np.float64) for n, t in tensors.items() if not n.endswith((".scales", ".biases"))}
    for module in (n.removesuffix(".scales") for n in tensors if n.endswith(".scales")):
        words, scales = tensors[f"{module}.weight"], tensors[f"{module}.scales"].astype(np.float64)
        biases = tensors[f"{module}.biases"].astype(np.float64)
        bits = 4 if module != "model.embed_tokens" else 8
        per_word = 32 // bits
        codes = np.stack([(words >> np.uint32(bits * i)) & np.uint32(2**bits - 1) for i in range(per_word)], -1)
        codes = codes.reshape(len(words), -1).astype(np.float64)
        group = codes.shape[1] // scales.shape[1]
        weights[f"{module}.weight"] = codes * np.repeat(scales, group, 1) + np.repeat(biases, group, 1)
    return weights
