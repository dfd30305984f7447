"""How many tokens of a given reply a draft would have had accepted, without decoding it.

A reply that stands fixes what every round sees: until a drafted token is rejected, the chain's tokens are the
reply's. So one pass of the head tells at each position how much of a chain would be accepted, and walking over the
reply from round to round gives the rounds that decoding would have taken. Exact for a greedy reply up to rounding.
Knows no target.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3chat.train.rounds import Rounds, walk
from eagle3chat.train.torch_features import Features
from eagle3chat.train.torch_head import HEAD, Head, Weights, join

ROWS = 512


@torch.no_grad()
def guesses(outs: Sequence[Tensor], head: Tensor, target_ids: Tensor) -> Tensor:
    """int64 [depth, M]: the target id of each step's most probable token."""
    return torch.stack(
        [torch.cat([target_ids[(rows @ head.t()).argmax(-1).cpu()] for rows in out.split(ROWS)]) for out in outs]
    )


@torch.no_grad()
def rounds_of(head: Head, weights: Weights, target_ids: Tensor, features: Features, chain: int) -> Rounds:
    """The rounds of one reply with a chain of `chain` most probable tokens."""
    part = join([features], chain, head.embedding.device)
    said = guesses(head(weights, part, chain), weights[HEAD], target_ids)
    reply = features.ids[features.start :]
    hits = [
        [guess == token for guess, token in zip(row.tolist(), reply[step:].tolist(), strict=False)]
        for step, row in enumerate(said)
    ]
    return walk(hits, len(reply))


def rounds(head: Head, weights: Weights, target_ids: Tensor, replies: Iterable[Features], chain: int) -> Rounds:
    """The rounds of several replies, added up."""
    total = Rounds.none(chain)
    for features in replies:
        total = total + rounds_of(head, weights, target_ids, features, chain)
    return total


@dataclass(frozen=True, slots=True)
class Watched:
    """Replies that a run is measured on while it lasts."""

    name: str
    features: tuple[Features, ...]
