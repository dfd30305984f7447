"""Which embedding a draft reads: its own, or the target's rows.

Most drafts are trained on the target's embedding, frozen; a file may hold a copy, a stale copy, or noise in its place.
A copy is compared with the target's rows on a sample, and where the two differ and nobody says which was trained with,
that is an error. The rows are compared raw (Gemma's scale is the target's own). Knows no other tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle3chat.engine.checkpoint import TargetSource
from eagle3chat.engine.config import DraftConfig, TargetConfig
from eagle3chat.engine.errors import CheckpointError
from eagle3chat.engine.layout import DRAFT_EMBEDDING, group_and_bits
from eagle3chat.engine.tensor_file import LazyTensor

F32 = npt.NDArray[np.float32]
MODULE = "model.embed_tokens"
SAMPLE = 64
DENSE_SHARE, CODES_SHARE = 0.02, 0.3  # see TargetRows: rounded to 16 bits, and to few
OTHER = "Use a draft that was trained for this target."
CHOOSE = "Choose with --own-embedding or --no-own-embedding."
_FLOATS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


@dataclass(frozen=True, slots=True)
class TargetRows:
    """The target's embedding, to compare a copy with."""

    read: Callable[[Sequence[int]], F32]  # ids to raw rows [n, H]
    share: float  # of a row's length, by which a true copy may differ


def wants_own(
    stored: Mapping[str, LazyTensor],
    config: Mapping[str, Any],
    draft: DraftConfig,
    target: TargetConfig,
    wanted: bool | None,
    rows: TargetRows | None,
    where: str,
) -> tuple[bool, str]:
    """Whether the draft keeps its own embedding, and a remark for the user; empty: none.

    Args:
        config: Flat; `embed_requires_grad` says whether the embedding was trained.
        wanted: The user's choice; None: none.
        rows: Of the target; None: a copy is not compared.

    Raises:
        CheckpointError: It has none where it needs one, or nobody can tell which one it was trained with.
    """
    info = stored.get(DRAFT_EMBEDDING)
    fits = draft.hidden_size == target.hidden_size
    if info is None:
        if wanted or not fits:
            reason = "--own-embedding asks for it" if wanted else f"the target's rows have {target.hidden_size} columns"
            raise CheckpointError(f"{where}: {DRAFT_EMBEDDING} is missing, and {reason}.", OTHER)
        return False, ""
    if wanted is False and not fits:
        what = f"its embedding has {draft.hidden_size} columns, the target's {target.hidden_size}"
        raise CheckpointError(f"{where}: {what}.", "Leave out --no-own-embedding.")
    if wanted is not None or not fits:
        return wanted is not False, ""
    trained = config.get("embed_requires_grad")
    if trained or rows is None:
        return bool(trained), ""
    return False, _compared(info, rows, (target.vocab_size, draft.hidden_size), trained is not None, where)


def check_shared(
    stored: Mapping[str, LazyTensor], draft: DraftConfig, target: TargetConfig, rows: TargetRows | None, where: str
) -> None:
    """Whether a draft may read the target's rows in the place of its own table, if it has one.

    Raises:
        CheckpointError: They are of another width, or differ.
    """
    own = stored.get(DRAFT_EMBEDDING)
    fix = "Leave out --share-draft-embedding."
    if draft.hidden_size != target.hidden_size:
        what = f"its rows have {draft.hidden_size} columns, the target's {target.hidden_size}"
        raise CheckpointError(f"{where}: the target's embedding cannot be shared: {what}.", fix)
    if own is None or rows is None:
        return
    if own.shape != (target.vocab_size, draft.hidden_size) or own.dtype not in _FLOATS:
        what = f"{DRAFT_EMBEDDING} is {own.dtype} {list(own.shape)}"
        raise CheckpointError(f"{where}: the target's embedding cannot be shared: {what}.", fix)
    differing, count = _differing(own, rows)
    if differing:
        what = f"{DRAFT_EMBEDDING} differs from it in {differing} of {count} rows"
        raise CheckpointError(f"{where}: the target's embedding cannot be shared: {what}.", fix)


def _compared(own: LazyTensor, rows: TargetRows, shape: tuple[int, int], frozen: bool, where: str) -> str:
    """A remark on a copy that is none; empty: it is one. An error where it is not said to be `frozen`."""
    if own.shape != shape or own.dtype not in _FLOATS:
        what = f"{DRAFT_EMBEDDING} is {own.dtype} {list(own.shape)}, and no copy of the target's {shape[0]} rows"
        raise CheckpointError(f"{where}: {what}.", "Use the target's with --no-own-embedding.")
    differing, count = _differing(own, rows)
    if not differing:
        return ""
    what = f"{DRAFT_EMBEDDING} differs from the target's in {differing} of {count} rows"
    if not frozen:
        raise CheckpointError(f"{where}: {what}, and its config does not say which one it was trained with.", CHOOSE)
    return f"{what}, though it was frozen in training; the target's is used. {CHOOSE}"


def rows_of(target: TargetSource) -> TargetRows:
    """The embedding of a target."""
    tensors = {tensor.name: tensor for tensor in target.tensors if tensor.name.startswith(f"{MODULE}.")}
    weight, scales = tensors[f"{MODULE}.weight"], tensors.get(f"{MODULE}.scales")
    if target.quantization is None or scales is None:
        # A dense table beside quantised weights may have been made from a quantised one.
        share = DENSE_SHARE if target.quantization is None else CODES_SHARE
        return TargetRows(lambda ids: dense_rows(weight, ids), share)
    _, bits = group_and_bits(target.quantization, MODULE)
    biases = tensors[f"{MODULE}.biases"]
    share = max(CODES_SHARE, 4.0 / 2**bits)
    return TargetRows(lambda ids: _affine_rows(weight, scales, biases, bits, ids), share)


def dense_rows(tensor: LazyTensor, ids: Sequence[int]) -> F32:
    """Rows of a dense matrix."""
    raw = np.frombuffer(tensor.rows(ids), _FLOATS[tensor.dtype]).reshape(len(ids), -1)
    if tensor.dtype == "BF16":
        return (raw.astype(np.uint32) << 16).view(np.float32)
    return raw.astype(np.float32)


def _affine_rows(weight: LazyTensor, scales: LazyTensor, biases: LazyTensor, bits: int, ids: Sequence[int]) -> F32:
    """Rows of a matrix in MLX affine form, w = scales * u + biases; a code's bits lie lowest first, words in order."""
    octets = np.frombuffer(weight.rows(ids), np.uint8).reshape(len(ids), -1)
    stream = np.unpackbits(octets, axis=1, bitorder="little").reshape(len(ids), -1, bits)
    codes = (stream << np.arange(bits, dtype=np.uint8)).sum(-1, dtype=np.float32)
    wide = [np.repeat(dense_rows(part, ids), codes.shape[1] // part.shape[1], axis=1) for part in (scales, biases)]
    product: F32 = wide[0] * codes + wide[1]
    return product


def _differing(own: LazyTensor, rows: TargetRows) -> tuple[int, int]:
    """How many rows of a sample, spread over the vocabulary, are not the same but for rounding; and its size."""
    count = min(SAMPLE, own.shape[0])
    ids = [place * own.shape[0] // count for place in range(count)]
    mine, theirs = dense_rows(own, ids), rows.read(ids)
    lengths = np.linalg.norm(theirs, axis=1)
    same = np.linalg.norm(mine - theirs, axis=1) <= rows.share * lengths + 1e-6  # not a number: not the same
    return int((~same).sum()), count
