"""The plain twin of `cpu_attention.Attend`: the same arguments and numbers, made of torch's operations."""

from __future__ import annotations

import torch
from torch import Tensor


class PlainAttend:
    """See `cpu_attention.Attend`. Sums in float64: the tests' truth."""

    def __init__(
        self,
        cache: Tensor,
        heads: int,
        cosines: Tensor,
        sines: Tensor,
        q_norm: Tensor | None = None,
        k_norm: Tensor | None = None,
        eps: float = 0.0,
        scale: float | None = None,
    ) -> None:
        self.cache, self.heads, self.kv_heads = cache, heads, cache.shape[0] // 2
        self.cosines, self.sines = cosines, sines
        self.norms, self.eps = (q_norm, k_norm), eps
        self.scale = cache.shape[2] ** -0.5 if scale is None else scale

    def _turn(self, x: Tensor, norm: Tensor | None, positions: slice) -> Tensor:
        """Norm and rotate [M, heads, d]."""
        if norm is not None:
            x = x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt() * norm.double()
        cosines, sines = self.cosines[positions, None].double(), self.sines[positions, None].double()
        return x * cosines + x.roll(x.shape[-1] // 2, -1) * sines

    def __call__(self, qkv: Tensor, start: int) -> Tensor:
        """qkv [M, (heads + 2 kv) * d] of positions start .. start + M - 1 -> [M, heads * d]; writes the cache."""
        rows, d, kv = qkv.shape[0], self.cache.shape[2], self.kv_heads
        positions = slice(start, start + rows)
        q, k, v = qkv.double().view(rows, -1, d).split((self.heads, kv, kv), 1)
        q, k = self._turn(q, self.norms[0], positions), self._turn(k, self.norms[1], positions)
        self.cache[:, positions] = torch.cat((k, v), 1).transpose(0, 1).to(self.cache.dtype)
        keys, values = self.cache[:, : start + rows].double().split(kv)
        group = self.heads // kv
        keys, values = keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)
        scores = q.transpose(0, 1) @ keys.transpose(1, 2) * self.scale
        scores += torch.full((rows, start + rows), -torch.inf, dtype=torch.float64).triu_(start + 1)
        return (scores.softmax(-1) @ values).transpose(0, 1).reshape(rows, -1).to(qkv.dtype)
