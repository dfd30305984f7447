"""The loss and its hand-made gradients against autograd over the whole."""

from __future__ import annotations

import pytest
import torch

from eagle3chat.train.torch_head import Part
from eagle3chat.train.torch_loss import ROWS, SoftTargets, slopes

VOCAB, DRAFT, WIDTH = 50, 23, 12
WEIGHTS = (1.0, 0.8, 0.64)


def made_part(replies: tuple[int, ...], rng: torch.Generator) -> tuple[Part, torch.Tensor]:
    """Random rows of the target, and its head's rows [V, Ht]."""
    count = sum(replies)
    head = torch.randn(VOCAB, WIDTH, generator=rng)
    normed = torch.randn(count, WIDTH, generator=rng)
    logits = normed @ head.t()
    empty = torch.zeros(0)
    last = torch.cat([torch.arange(n - 1, -1, -1) for n in replies])
    best, top, total = logits.argmax(-1), logits.amax(-1), logits.logsumexp(-1)
    return Part(empty, empty, empty, empty, (), replies, normed, best, top, total, last), head


def reference(
    outs: list[torch.Tensor], head: torch.Tensor, part: Part, target_head: torch.Tensor, ids: torch.Tensor, hard: float
) -> torch.Tensor:
    """The loss as the module's docstring has it, a row at a time."""
    loss = torch.zeros(())
    first = 0
    for count in part.replies:
        for row in range(first, first + count):
            for step, weight in enumerate(WEIGHTS):
                if row + step >= first + count:
                    continue
                full = (part.normed[row + step] @ target_head.t()).softmax(-1)
                p, mass = full[ids] / full[ids].sum(), full[ids].sum()
                best = int(full.argmax())
                if best in ids:
                    p = (p + hard * (ids == best)) / (1.0 + hard)
                loss = loss + weight * mass * -(p * (outs[step][row] @ head.t()).log_softmax(-1)).sum()
        first += count
    return loss


@pytest.mark.parametrize("replies", [(5,), (4, 1, 7), (2, ROWS - 1, 9)], ids=["one", "three", "over a border"])
@pytest.mark.parametrize("hard", [0.0, 0.5])
def test_gradients_are_those_of_the_loss(replies: tuple[int, ...], hard: float) -> None:
    rng = torch.Generator().manual_seed(len(replies))
    part, target_head = made_part(replies, rng)
    ids = torch.randperm(VOCAB, generator=rng)[:DRAFT].sort().values
    draft_ids = torch.full((VOCAB,), -1)
    draft_ids[ids] = torch.arange(DRAFT)
    outs = [torch.randn(sum(replies), WIDTH, generator=rng, requires_grad=True) for _ in WEIGHTS]
    head = torch.randn(DRAFT, WIDTH, generator=rng, requires_grad=True)
    made = slopes(
        [o.detach() for o in outs], head.detach(), part, SoftTargets(target_head[ids], draft_ids, hard), WEIGHTS
    )
    loss = reference(outs, head, part, target_head, ids, hard)
    wanted = torch.autograd.grad(loss, [*outs, head])
    torch.testing.assert_close((made.losses * torch.tensor(WEIGHTS)).sum(), loss.detach(), rtol=1e-4, atol=1e-4)
    for found, want in zip([*made.outs, made.head], wanted, strict=True):
        torch.testing.assert_close(found, want, rtol=1e-3, atol=1e-5)
    assert made.counts.tolist() == [sum(max(0, n - step) for n in replies) for step in range(len(WEIGHTS))]
