"""A draft's d2t and t2d: which target token each draft token is.

    d2t   [Vd] offsets: draft token i is target token i + d2t[i], ascending; absent when the vocabularies are the same
    t2d   [V] true where a target token is in the draft's vocabulary; says nothing more, but must agree

Source of the format: EAGLE's reference code. Knows no other tensor.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from eagle3chat.engine.errors import CheckpointError
from eagle3chat.engine.tensor_file import LazyTensor

Ids = npt.NDArray[np.int64]
OFFSETS, MASK = "d2t", "t2d"
FEW = 16  # so many kept ids without two neighbours among them do not happen
OTHER = "Use a draft that was trained for this target."
_NUMBERS = {"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1", "BOOL": "?"}


def target_ids(stored: Mapping[str, LazyTensor], count: int, vocab: int, where: str) -> Ids:
    """[Vd] The target id of each of `count` draft tokens, ascending, below `vocab`.

    Raises:
        CheckpointError: d2t is missing, or holds no offsets to ascending ids; or t2d disagrees.
    """
    places = np.arange(count, dtype=np.int64)
    if OFFSETS not in stored:
        if count != vocab:
            raise CheckpointError(f"{where}: d2t is missing, and {count} draft tokens are not all {vocab}.", OTHER)
        return places
    info = stored[OFFSETS]
    if info.dtype not in ("I64", "I32") or info.shape != (count,):
        raise CheckpointError(f"{where}: d2t is {info.dtype} {list(info.shape)}, not I64 [{count}].", OTHER)
    offsets = _numbers(info).astype(np.int64)
    ids: Ids = places + offsets
    named = _named(stored, vocab, where)
    problem = _problem(offsets, ids, vocab, named)
    if problem:
        raise CheckpointError(f"{where}: {problem}.", OTHER)
    return ids


def _problem(offsets: Ids, ids: Ids, vocab: int, named: Ids | None) -> str:
    """What is wrong with d2t, as a clause; `named`: the ids of t2d, which can tell what a doubtful d2t means."""
    rising = len(offsets) > 1 and bool((np.diff(offsets) > 0).all())
    if ids.min() < 0 or ids.max() >= vocab or (np.diff(ids) <= 0).any():
        what = "d2t does not hold offsets to ascending target ids"
        absolute = rising and offsets.min() >= 0 and offsets.max() < vocab
        return what + (" (it seems to hold the ids themselves)" if absolute else "")
    if named is not None:
        if np.array_equal(named, ids):
            return ""
        what = "d2t and t2d name different tokens"
        return what + (" (d2t seems to hold the ids themselves)" if np.array_equal(named, offsets) else "")
    if rising and len(offsets) >= FEW:
        return "d2t rises from each token to the next, so it seems to hold the ids themselves and not offsets"
    if len(ids) < vocab and not offsets.any():
        return f"d2t is all zero, so its {len(ids)} tokens have lost their target ids"
    return ""


def _named(stored: Mapping[str, LazyTensor], vocab: int, where: str) -> Ids | None:
    """The ids that t2d names; None without it."""
    info = stored.get(MASK)
    if info is None:
        return None
    if info.shape != (vocab,):
        raise CheckpointError(f"{where}: t2d has {list(info.shape)} places, the target {vocab} tokens.", OTHER)
    if info.dtype not in _NUMBERS:
        raise CheckpointError(f"{where}: t2d has the type {info.dtype}, which is no mask.", OTHER)
    return np.flatnonzero(_numbers(info)).astype(np.int64)


def _numbers(info: LazyTensor) -> npt.NDArray[np.generic]:
    return np.frombuffer(info.read(), _NUMBERS[info.dtype])
