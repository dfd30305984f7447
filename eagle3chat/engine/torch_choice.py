"""The choice rule on a device, and all that a round reports, as one small tensor.

The same function as `engine.sampling`: filters are thresholds on values, so that ties stay and a row
gives the same answer alone and among others. Nothing here waits for the device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3chat.engine.sampling import Sampling

RUNNERS_UP = 4
NUCLEUS = 1024  # candidates that top-p looks at before it sorts the whole vocabulary
BLOCK = 128
CHOSEN, CHOSEN_P, MARGIN, SHORT, TARGET_P, IDS, PS = 0, 1, 2, 3, 4, 5, 5 + RUNNERS_UP
COLUMNS = 5 + 2 * RUNNERS_UP


@dataclass(frozen=True, slots=True)
class Judged:
    """What the target said at one row, on the host."""

    chosen: int
    chosen_p: float
    margin: float
    short: bool  # top-p ran out of candidates: the row has to be judged again with all of them
    target_p: float  # of the drafted token there; meaningless in the bonus row
    runners_up: tuple[tuple[int, float], ...]


def nucleus(p: Tensor, top_p: float, candidates: int) -> tuple[Tensor, Tensor]:
    """The least probability [R, 1] that top-p keeps, and whether `candidates` were too few to tell [R].

    Kept is a token while the mass of all more probable ones is below top_p.
    """
    width = min(candidates, p.shape[-1])
    ordered = p.topk(width, -1).values
    mass = ordered.double().cumsum(-1)
    before = mass - ordered
    last = (before < top_p).sum(-1, keepdim=True) - 1
    short = mass[:, -1] < top_p if width < p.shape[-1] else torch.zeros_like(mass[:, -1], dtype=torch.bool)
    return ordered.gather(-1, last), short


def filtered(logits: Tensor, sampling: Sampling, candidates: int = NUCLEUS) -> tuple[Tensor, Tensor | None]:
    """Float32 logits [R, V] after temperature, top-k, top-p and min-p; -inf: dropped.

    The second value [R] says where top-p had too few candidates to tell (None: nowhere).
    """
    if sampling.temperature == 0.0:
        return logits, None
    scaled, short = logits / sampling.temperature, None
    if 0 < sampling.top_k < logits.shape[-1]:
        least = scaled.topk(sampling.top_k, -1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < least, -torch.inf)
    if sampling.top_p < 1.0:
        p = scaled.softmax(-1)
        least, short = nucleus(p, sampling.top_p, candidates)
        scaled = scaled.masked_fill(p < least, -torch.inf)
    if sampling.min_p > 0.0:
        p = scaled.softmax(-1)
        scaled = scaled.masked_fill(p < sampling.min_p * p.amax(-1, keepdim=True), -torch.inf)
    return scaled, short


def largest(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest values of each row [R, count], in order, and their places.

    They lie in the `count` blocks with the largest maxima, so most of the row is read once, by a maximum.
    """
    rows, width = x.shape
    if width % BLOCK or width < 4 * BLOCK * count:
        values, places = x.topk(min(count, width), -1)
        return values, places
    blocks = x.view(rows, -1, BLOCK)
    chosen = blocks.amax(-1).topk(count, -1).indices  # [R, count]
    inside = blocks.gather(1, chosen[..., None].expand(rows, count, BLOCK)).view(rows, -1)
    values, places = inside.topk(count, -1)
    return values, chosen.gather(-1, places // BLOCK) * BLOCK + places % BLOCK


def judge(
    logits: Tensor, noise: Tensor | None, drafted: Tensor, sampling: Sampling, candidates: int = NUCLEUS
) -> Tensor:
    """Everything the target says about its rows.

    Args:
        logits: Float32 [R, V].
        noise: Float32 [R, V] of the rows' positions; None: greedy.
        drafted: Int64 [R], the token to judge in each row (any id in the bonus row).
        candidates: See `nucleus`.

    Returns:
        Float32 [R, COLUMNS]; ids are exact up to 2**24.
    """
    scaled, short = filtered(logits, sampling, candidates)
    perturbed = scaled if noise is None else scaled + noise
    top, ids = largest(scaled, RUNNERS_UP)
    best, chosen = perturbed.max(-1, keepdim=True)  # the first of equal maxima
    second = (top if noise is None else largest(perturbed, 2)[0])[:, 1:2]
    mass = scaled.logsumexp(-1, keepdim=True)
    picked = torch.cat((chosen, drafted[:, None]), -1)
    p = (scaled.gather(-1, picked) - mass).exp()
    missing = torch.zeros_like(best) if short is None else short[:, None].float()
    columns = (chosen.float(), p[:, :1], best - second, missing, p[:, 1:], ids.float(), (top - mass).exp())
    return torch.cat(columns, -1)


def read(row: list[float]) -> Judged:
    """One row of `judge`, on the host."""
    pairs = zip(row[IDS:PS], row[PS:COLUMNS], strict=True)
    return Judged(
        chosen=int(row[CHOSEN]),
        chosen_p=row[CHOSEN_P],
        margin=math.inf if math.isnan(row[MARGIN]) else row[MARGIN],
        short=row[SHORT] > 0.0,
        target_p=row[TARGET_P],
        runners_up=tuple((int(i), p) for i, p in pairs if p > 0.0),
    )
