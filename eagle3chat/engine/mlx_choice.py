"""The choice rule in MLX, and all that a round reports, as one small array.

The same function as `engine.sampling`: filters are thresholds on values, so that ties stay and a row
gives the same answer alone and among others. Nothing here waits for the device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import mlx.core as mx

from eagle3chat.engine.sampling import Sampling

RUNNERS_UP = 4
BLOCK = 128
UNITS = 2.0**52  # of probability mass: sums of whole units are exact in any order
CHOSEN, CHOSEN_P, MARGIN, TARGET_P, IDS, PS = 0, 1, 2, 3, 4, 4 + RUNNERS_UP
COLUMNS = PS + RUNNERS_UP


@dataclass(frozen=True, slots=True)
class Judged:
    """What the target said at one row, on the host."""

    chosen: int
    chosen_p: float
    margin: float
    target_p: float  # of the drafted token there; meaningless in the bonus row
    runners_up: tuple[tuple[int, float], ...]


def log_total(x: mx.array) -> mx.array:
    """The logarithm of the sum of exponentials of each row, [R, 1].

    By blocks: on a CPU, MLX adds up a row in its order, and what is added to a sum near 1 is lost if it is
    small, though a vocabulary of such terms is not.
    """
    rows, width = x.shape
    if width % BLOCK:
        x = mx.pad(x, ((0, 0), (0, BLOCK - width % BLOCK)), constant_values=-mx.inf)
    return mx.logsumexp(mx.logsumexp(x.reshape(rows, -1, BLOCK), axis=-1), axis=-1, keepdims=True)


def probabilities(x: mx.array) -> mx.array:
    """The softmax of each row [R, V]."""
    return mx.exp(x - log_total(x))


def nucleus(p: mx.array, top_p: float) -> mx.array:
    """The least probability [R, 1] that top-p keeps: kept is a token while all more probable ones have less than top_p.

    Metal has no float64, so masses are added as whole numbers of 2**-52.
    """
    ordered = -mx.sort(-p, axis=-1)
    units = (ordered * UNITS).astype(mx.uint64)
    before = mx.cumsum(units, axis=-1) - units
    last = (before < mx.array(int(top_p * UNITS), dtype=mx.uint64)).sum(-1, keepdims=True) - 1
    return mx.take_along_axis(ordered, last, axis=-1)


def largest(x: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """The `count` largest values of each row [R, count], in order, and their places (uint32).

    They lie in the `count` blocks with the largest maxima, so of a wide row only these are sorted.
    """
    rows, width = x.shape
    if width % BLOCK or width < BLOCK * count:
        places = mx.argsort(-x, axis=-1)[:, :count].astype(mx.uint32)
        return mx.take_along_axis(x, places, axis=-1), places
    blocks = x.reshape(rows, -1, BLOCK)
    best = mx.argsort(-blocks.max(-1), axis=-1)[:, :count, None].astype(mx.uint32)
    inside = mx.take_along_axis(blocks, best, axis=1).reshape(rows, -1)
    ids = (best * BLOCK + mx.arange(BLOCK, dtype=mx.uint32)).reshape(rows, -1)
    order = mx.argsort(-inside, axis=-1)[:, :count]
    return mx.take_along_axis(inside, order, axis=-1), mx.take_along_axis(ids, order, axis=-1)


def filtered(logits: mx.array, sampling: Sampling) -> mx.array:
    """Float32 logits [R, V] after temperature, top-k, top-p and min-p; -inf: dropped."""
    if sampling.temperature == 0.0:
        return logits
    scaled = logits / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        least = largest(scaled, sampling.top_k)[0][:, -1:]
        scaled = mx.where(scaled < least, -mx.inf, scaled)
    if sampling.top_p < 1.0:
        p = probabilities(scaled)
        scaled = mx.where(p < nucleus(p, sampling.top_p), -mx.inf, scaled)
    if sampling.min_p > 0.0:
        p = probabilities(scaled)
        scaled = mx.where(p < sampling.min_p * p.max(-1, keepdims=True), -mx.inf, scaled)
    return scaled


def judge(logits: mx.array, noise: mx.array | None, drafted: mx.array, sampling: Sampling) -> mx.array:
    """Everything the target says about its rows.

    Args:
        logits: Float32 [R, V].
        noise: Float32 [R, V] of the rows' positions; None: greedy.
        drafted: Integers [R], the token to judge in each row (any id in the bonus row).

    Returns:
        Float32 [R, COLUMNS]; ids are exact up to 2**24.
    """
    scaled = filtered(logits, sampling)
    perturbed = scaled if noise is None else scaled + noise
    top, ids = largest(scaled, RUNNERS_UP)
    two = top if noise is None else largest(perturbed, 2)[0]
    chosen = mx.argmax(perturbed, axis=-1, keepdims=True)  # the first of equal ones
    picked = mx.concatenate((chosen, drafted[:, None].astype(mx.uint32), ids), axis=-1)
    p = mx.exp(mx.take_along_axis(scaled, picked, axis=-1) - log_total(scaled))
    said = (chosen.astype(mx.float32), p[:, :1], two[:, :1] - two[:, 1:2], p[:, 1:2], ids.astype(mx.float32), p[:, 2:])
    return mx.concatenate(said, axis=-1)


def read(row: list[float]) -> Judged:
    """One row of `judge`, on the host."""
    pairs = zip(row[IDS:PS], row[PS:COLUMNS], strict=True)
    return Judged(
        chosen=int(row[CHOSEN]),
        chosen_p=row[CHOSEN_P],
        margin=math.inf if math.isnan(row[MARGIN]) else row[MARGIN],
        target_p=row[TARGET_P],
        runners_up=tuple((int(i), p) for i, p in pairs if p > 0.0),
    )
