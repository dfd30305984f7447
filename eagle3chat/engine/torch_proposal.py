"""A chain of proposals: what is waiting to be drafted from, the drafting itself, and its handle.

Nothing here waits for the device: a proposal feeds the next step, and the verification, as a tensor.
Knows no target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from eagle3chat.engine.backend import Fate, Worth
from eagle3chat.engine.quick import quick
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.torch_device import Mark
from eagle3chat.engine.torch_draft import DraftHead
from eagle3chat.engine.torch_penalty import Counts, penalised
from eagle3chat.engine.torch_span import Place


@quick
@dataclass(frozen=True, slots=True)
class TorchDraft:
    """Proposals on the device. `noise` is of positions n .. n+K under `seed`; None: greedy."""

    tokens: Tensor  # int64 [K+1], target ids: the anchor, then the proposals
    p: Tensor  # float32 [K+1], the draft's probability of each proposal; the last one means nothing
    noise: Tensor | None  # float32 [K+1, V]
    seed: int
    started: Mark
    ended: Mark

    @property
    def chain(self) -> int:
        """K."""
        return int(self.tokens.shape[0]) - 1


@dataclass(slots=True)
class Pending:
    """Confirmed rows that the draft has not seen: taps of positions, each with the token after it."""

    taps: list[Tensor] = field(default_factory=list)  # [m, A * Ht] each
    tokens: list[int] = field(default_factory=list)

    def add(self, taps: Tensor, tokens: Sequence[int]) -> None:
        """More rows, one a token."""
        assert taps.shape[0] == len(tokens)
        self.taps.append(taps)
        self.tokens.extend(tokens)

    def take(self) -> tuple[Tensor, list[int]]:
        """All rows; none are pending afterwards."""
        taps = self.taps[0] if len(self.taps) == 1 else torch.cat(self.taps)
        tokens = self.tokens
        self.taps, self.tokens = [], []
        return taps, tokens


def propose(
    head: DraftHead,
    tokens: Tensor,
    out: Tensor,
    chain: int,
    sampling: Sampling,
    noise: Tensor | None,
    counts: Counts | None,
    worth: Worth | None = None,
    place: Place | None = None,
) -> tuple[Tensor, Tensor]:
    """Draft a chain after a pass of the head over confirmed rows.

    The draft hears the target's noise and penalties, at the ids that it can say. Its rows of its own features are
    written behind the confirmed ones and not counted, so the next pass overwrites them.

    Args:
        tokens: [p] tokens of the confirmed rows; the last one is the anchor.
        out: [p, H], the head's output for them.
        noise: Float32 [K+1, V] of the proposals' positions, and one more; None: greedy.
        counts: Of the committed tokens; None: no penalty is on.
        worth: See Backend.draft; waits for the device at each step.
        place: Of the first row after the confirmed ones; None: after the cache's rows.

    Returns:
        The anchor and the proposals as target ids [K+1], and the draft's probabilities [K+1], the last one 0.
    """
    heard = None if noise is None else noise[:chain].index_select(1, head.target_ids)
    said = None if counts is None else counts.at(head.target_ids)
    rows, places, ids = [], [], [tokens[-1:]]
    start = head.cache.rows if place is None else place
    for step in range(chain):
        logits, feature = head.propose(out)
        if said is not None:
            logits = penalised(logits, said, sampling)
        if heard is None:
            place = logits.argmax(-1)
        else:
            logits = logits / sampling.temperature
            place = torch.add(heard[step : step + 1], logits, alpha=1.0 / sampling.sharpness).argmax(-1)
        fate = Fate.MORE if worth is None else worth(logits.softmax(-1)[0, place].item())
        if fate is Fate.DROPPED:
            break
        rows.append(logits)
        places.append(place)
        ids.append(head.target_ids[place])
        if said is not None:
            said.add(place.view(1))
        if fate is Fate.LAST:
            break
        if step + 1 < chain:
            out = head(ids[-1], feature, start + step)
    if not rows:
        return ids[0], torch.zeros(1, device=ids[0].device)
    p = torch.cat(rows).softmax(-1).gather(-1, torch.stack(places))
    return torch.cat(ids), F.pad(p.squeeze(-1), (0, 1))
