"""The loss of a part of the data, and its gradient with respect to the head's rows and what they read.

    loss = sum over steps j of weight_j * sum over rows of mass * H(q, draft) / rows
    q    = (p + hard * [best]) / (1 + hard)

p is the target's distribution over the draft vocabulary, `mass` the probability that it has there, and [best] the
target's most probable token, where that is in the draft vocabulary. Row r of step j learns from the target's row r + j.

Both gradients are simple (softmax - q), so they are computed by hand some rows at a time: the logits of all rows would
take more memory than everything else together. Knows no layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3chat.train.torch_head import Part

ROWS = 256


@dataclass(frozen=True, slots=True)
class Slopes:
    """A part's loss with its gradients.

    Args:
        losses: Float32 [depth], the sum over rows of each step, unweighted by step.
        counts: Int64 [depth], rows of each step.
        outs: The gradient of each step's outputs [M, H].
        head: That of the head's rows [Vd, H], float32.
    """

    losses: Tensor
    counts: Tensor
    outs: list[Tensor]
    head: Tensor


class SoftTargets:
    """The target's distribution over a draft vocabulary.

    Args:
        rows: [Vd, Ht], the target's head rows of the draft vocabulary.
        draft_ids: int64 [V], the draft id of each target id, -1: none.
        hard: See above.
        softcap: Of the target's logits, 0: none.
    """

    def __init__(self, rows: Tensor, draft_ids: Tensor, hard: float, softcap: float = 0.0) -> None:
        self.rows, self.draft_ids, self.hard, self.softcap = rows, draft_ids, hard, softcap

    def __call__(self, normed: Tensor, best: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        """q, float32 [M, Vd], and its mass [M], of rows normed [M, Ht], best [M], sum [M] (see `Features`)."""
        logits = (normed.to(self.rows.dtype) @ self.rows.t()).float()
        if self.softcap:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        own = logits.logsumexp(-1, keepdim=True)
        q = logits.sub_(own).exp_()
        places = self.draft_ids[best]
        share = torch.where(places >= 0, self.hard, 0.0)
        q.scatter_add_(1, places.clamp_min(0)[:, None], share[:, None])
        q /= 1.0 + share[:, None]
        return q, (own[:, 0] - total).exp().clamp_max(1.0)


@torch.no_grad()
def slopes(outs: Sequence[Tensor], head: Tensor, part: Part, targets: SoftTargets, weights: Sequence[float]) -> Slopes:
    """The loss and its gradients.

    Args:
        outs: [M, H] of each step.
        head: [Vd, H].
        weights: Of each step.
    """
    depth, count = len(outs), outs[0].shape[0]
    made = [torch.zeros_like(out) for out in outs]
    grad = torch.zeros(head.shape, dtype=torch.float32, device=head.device)
    losses = torch.zeros(depth, device=head.device)
    for first in range(0, count, ROWS):
        end = min(first + ROWS, count)
        reach = min(end + depth - 1, count)  # the target's rows that these anchors' chains learn from
        q, mass = targets(part.normed[first:reach], part.best[first:reach], part.sum[first:reach])
        errors, inputs = [], []
        for step, out in enumerate(outs):
            rows = min(end, count - step) - first
            if rows <= 0:
                continue
            valid = mass[step : step + rows] * (part.last[first : first + rows] >= step)
            y = out[first : first + rows]
            logits = (y @ head.t()).float()
            aim = q[step : step + rows]
            total = logits.logsumexp(-1)
            losses[step] += ((total - torch.linalg.vecdot(aim, logits)) * valid).sum()
            error = logits.sub_(total[:, None]).exp_().sub_(aim).mul_((valid * weights[step])[:, None]).to(head.dtype)
            made[step][first : first + rows] = error @ head
            errors.append(error)
            inputs.append(y)
        grad += torch.cat(errors).t() @ torch.cat(inputs)
    counts = torch.stack([(part.last >= step).sum() for step in range(depth)])
    return Slopes(losses, counts, made, grad)
