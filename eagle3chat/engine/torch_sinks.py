"""Attention with sinks: each head has one more score, which takes its share of the softmax and gives nothing.

Torch's fused attention has no such score, so the scores are written out; many of them one key-value head at a time, to
keep them small. Source: gpt-oss (2025), whose models have a learned sink for each head. Knows no cache.
"""

from __future__ import annotations

import torch
from torch import Tensor

MANY = 1 << 24  # scores


def attend_with_sinks(
    q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, sinks: Tensor, scale: float
) -> Tensor:
    """Softmax over the scores and the sink, in float32.

    Args:
        q: [kv, .., R, d].
        keys, values: [kv, .., L, d], in dimensions between broadcast.
        mask: Added to the scores, [R, L], or None.
        sinks: Float32 [kv, .., R or 1, 1].

    Returns:
        [kv, .., R, d].
    """
    if q[..., 0].numel() * keys.shape[-2] <= MANY:
        return _attend(q, keys, values, sinks, mask, scale)
    parts = zip(q.split(1), keys.split(1), values.split(1), sinks.split(1), strict=True)
    return torch.cat([_attend(*part, mask, scale) for part in parts])


def _attend(q: Tensor, keys: Tensor, values: Tensor, sinks: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    scores = torch.matmul(q, keys.transpose(-1, -2)).float().mul_(scale)
    if mask is not None:
        scores += mask
    top = torch.maximum(scores.amax(-1, keepdim=True), sinks)
    shares = scores.sub_(top).exp_()
    shares /= shares.sum(-1, keepdim=True) + (sinks - top).exp()
    return torch.matmul(shares.to(values.dtype), values)
