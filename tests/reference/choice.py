"""The choice rule once more, over NumPy rows: penalties, temperature, filters, noise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from eagle3chat.engine.sampling import Sampling
from reference.numbers import Array, softmax

WORD = (1 << 64) - 1
U32 = npt.NDArray[np.uint32]


def penalised(row: Array, prompt: Sequence[int], reply: Sequence[int], ids: Sequence[int], s: Sampling) -> Array:
    """Logits after penalties, one for each of `ids`.

    Repetition (prompt and reply): a logit above 0 is divided, another multiplied. Presence and frequency (reply).
    """
    counts, said = Counter(reply), {*prompt, *reply}
    row = row.copy()
    for place, token in enumerate(ids):
        if token in said:
            row[place] = row[place] / s.repetition if row[place] > 0 else row[place] * s.repetition
        if counts[token]:
            row[place] -= s.presence + s.frequency * counts[token]
    return row


def shaped(row: Array, s: Sampling) -> Array:
    """Logits after temperature, top-k, top-p, min-p; dropped ones are -inf. Greedy: as they are."""
    if s.temperature == 0.0:
        return row
    row = row / s.temperature
    if 0 < s.top_k < len(row):
        row = np.where(row >= np.sort(row)[-s.top_k], row, -np.inf)
    if s.top_p < 1.0:
        p = softmax(row)
        mass_above = np.array([p[p > q].sum() for q in p])
        row = np.where(mass_above < s.top_p, row, -np.inf)
    if s.min_p > 0.0:
        p = softmax(row)
        row = np.where(p >= s.min_p * p.max(), row, -np.inf)
    return row


def noise(seed: int, position: int, size: int) -> Array:
    """Gumbel noise of ids 0..size-1 at a position, from a hash of (seed, position, id)."""
    state = _stirred((_stirred(seed) + position * 0x9E3779B97F4A7C15) & WORD)
    low, high = np.uint32(state & 0xFFFFFFFF), np.uint32(state >> 32)
    with np.errstate(over="ignore"):
        ids = np.arange(size, dtype=np.uint32) * np.uint32(0x9E3779B1)
        bits = _finished(_finished(ids + low) ^ high)
    v = np.minimum((bits.astype(np.float64) + 0.5) / 2.0**32, 1.0 - 2.0**-24)
    return -np.log(-np.log1p(-v))


def _stirred(x: int) -> int:
    """A step of splitmix64."""
    x = (x + 0x9E3779B97F4A7C15) & WORD
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = ((x ^ (x >> shift)) * factor) & WORD
    return x ^ (x >> 31)


def _finished(x: U32) -> U32:
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    return x ^ (x >> np.uint32(16))
