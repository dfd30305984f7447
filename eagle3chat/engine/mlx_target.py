"""The target on MLX: any decoder of mlx-lm with its residual stream tapped and caches that can be rolled back.

A call builds a graph and evaluates nothing: logits that no one evaluates cost nothing. Use it on one thread.
Knows no draft and no choice of tokens: ids in, logits and taps out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache

from eagle3chat.engine.bundle import TARGET, Bundle
from eagle3chat.engine.errors import BackendError
from eagle3chat.engine.mlx_cache import FullCache, SlidingCache
from eagle3chat.engine.mlx_model import ELSEWHERE, open_model
from eagle3chat.engine.mlx_taps import Taps

SLACK = 128  # rows that a sliding cache can always drop again, if the chain is not longer


class MlxTarget:
    """The target's weights, its caches, and its one pass.

    Rows are positions. A pass writes rows after the `rows` that count and does not count them: `advance` does. What
    was written and not counted is dropped by the next pass.

    Args:
        bundle: Checked at its door.
        taps: Boundaries whose residual stream is handed out: 0 = what layer 0 is given, b = after b layers
            (the last one before the final norm). Empty without a draft.
        capacity: Positions.
        dtype: Of the activations, the caches, and every weight that is not packed.
        report: Told the share that is loaded, 0..1.

    Raises:
        BackendError: mlx-lm cannot open this target, or its residual stream cannot be tapped.
    """

    def __init__(
        self,
        bundle: Bundle,
        taps: tuple[int, ...],
        capacity: int,
        dtype: mx.Dtype,
        report: Callable[[float], None] = lambda share: None,
    ) -> None:
        manifest = bundle.manifest
        self._config = manifest.target
        self.capacity = capacity
        self.rows = 0  # positions that count
        self._written = 0  # positions that the caches hold
        self._slack = max(SLACK, manifest.max_chain + 1)
        opened = open_model(bundle.path / TARGET, manifest.target, dtype, report)
        self._model, self._embed, self._head = opened.model, opened.embed, opened.head
        self._weights = sum(weight.nbytes for _, weight in tree_flatten(self._model.parameters()))
        self._stock = False  # mlx-lm's own caches, without rollback
        self._caches = self._new_caches()
        try:
            self._taps = Taps(opened.layers, taps) if taps else None
            self._check(len(taps))
        except ValueError as error:
            what = f"The model type {self._model_type} cannot be tapped on MLX: {error}."
            raise BackendError(what, f"{ELSEWHERE[:-1]}, or make a bundle without a draft.") from error

    @property
    def _model_type(self) -> str:
        return str(getattr(self._model, "model_type", self._config.family))

    def _new_caches(self) -> list[Any]:
        """A cache for each place where the model has one, ours in place of the kinds that we know."""
        return [self._own(cache) for cache in make_prompt_cache(self._model)]

    def _own(self, cache: Any) -> Any:
        if self._stock:
            return cache
        if type(cache) is KVCache:
            return FullCache(self.capacity)
        if type(cache) is RotatingKVCache and cache.keep == 0:
            return SlidingCache(cache.max_size, self._slack)
        return cache

    def _check(self, taps: int) -> None:
        """Build the graph of one row and look at its shapes."""
        row = mx.zeros((1,), mx.int32)
        try:
            logits, tapped = self(row)
        except AttributeError:  # the model asks something of a cache that ours do not answer
            self._stock = True
            self.keep(0)
            logits, tapped = self(row)
        self.keep(0)
        vocab, width = self._config.vocab_size, self._config.hidden_size
        if logits.shape != (1, vocab):
            what = f"The model type {self._model_type} gives logits {logits.shape} on MLX, not [1, {vocab}]."
            raise BackendError(what, ELSEWHERE)
        if tapped is not None and tapped.shape[1] != taps * width:
            raise ValueError(f"its taps are {tapped.shape[1]} wide, not {taps} times {width}")

    @property
    def vocab_size(self) -> int:
        """V."""
        return self._config.vocab_size

    @property
    def window(self) -> int:
        """Positions that sliding layers see, the smallest of them; 0: all layers see all."""
        return min((cache.window for cache in self._caches if isinstance(cache, SlidingCache)), default=0)

    @property
    def slack(self) -> int:
        """Rows that can always be dropped, from the furthest that was written; a pass that may be has no more."""
        return self._slack

    @property
    def can_rollback(self) -> bool:
        """Whether rows can be dropped. If not, decode plainly: each pass has only rows that will be kept."""
        return not self.why_no_rollback

    @property
    def why_no_rollback(self) -> str:
        """A sentence for the person at the screen; empty when rows can be dropped."""
        kinds = sorted({type(cache).__name__ for cache in self._caches if not _ours(cache)})
        if not kinds:
            return ""
        return (
            f"The model type {self._model_type} keeps a state that cannot go back to an earlier token "
            f"({', '.join(kinds)}), so it is decoded plainly, without a draft."
        )

    @property
    def nbytes(self) -> int:
        """Bytes of weights and caches."""
        return self._weights + sum(array.nbytes for array in self.cache_arrays())

    @property
    def pass_bytes(self) -> int:
        """Bytes of the matrices that a pass of few rows reads, each once; 0: experts are chosen by the rows.

        Not among them are the rows of embedding tables, the norms' vectors and the caches.
        """
        if self._config.experts is not None:
            return 0
        tables = [module for _, module in self._model.named_modules() if hasattr(module, "as_linear")]
        if self._config.tie_embeddings:  # the table of the tokens is the head
            tables = [table for table in tables if table.weight.shape[0] != self.vocab_size]
        return _matrices(self._model) - sum(map(_matrices, tables))

    def cache_arrays(self) -> list[mx.array]:
        """What must be evaluated for the caches to hold values instead of a graph."""
        return [array for _, array in tree_flatten([cache.state for cache in self._caches]) if _is_array(array)]

    def __call__(self, tokens: mx.array) -> tuple[mx.array, mx.array | None]:
        """One pass over tokens int32 [M] at the positions after `rows`. Writes the caches, counts nothing. Lazy.

        Returns:
            Float32 logits [M, V], and the taps [M, A * Ht] in ascending order of boundary, or None without a draft.
        """
        count = tokens.shape[0]
        assert self.rows + count <= self.capacity, (self.rows, count, self.capacity)
        dropped = self.keep(self.rows)
        assert dropped, (self.rows, self._written)
        if self._taps is not None:
            self._taps.clear()
        self._written = self.rows + count  # before the pass, which may fail half-way
        logits = self._model(tokens[None], cache=self._caches)[0]
        return logits.astype(mx.float32), None if self._taps is None else self._taps.take(count)

    def advance(self, rows: int) -> None:
        """Count `rows` more rows, already written."""
        assert 0 <= rows <= self._written - self.rows, (self.rows, rows, self._written)
        assert self.can_rollback or self.rows + rows == self._written, "no row can be dropped"
        self.rows += rows

    def keep(self, rows: int) -> bool:
        """Drop all rows but the first `rows`, and those that were written and not counted.

        Returns:
            False: it is not possible, and nothing has changed. That is so when a sliding layer has lost what the
            position `rows` sees (more than `slack` rows back), or without `can_rollback`. keep(0) always is.
        """
        assert 0 <= rows <= self.rows, (rows, self.rows)
        if rows == 0:
            self._caches = self._new_caches()
        elif rows != self._written:
            if not all(_ours(cache) and cache.can_keep(rows) for cache in self._caches):
                return False
            for cache in self._caches:
                cache.keep(rows)
        self.rows = self._written = rows
        return True

    def embed_rows(self, ids: mx.array) -> mx.array:
        """Raw embedding rows [M, Ht] of token ids [M]: dequantised, without the scale that some models put on them."""
        return self._embed(ids)

    def head(self, x: mx.array) -> mx.array:
        """The target's head on a normed stream [M, Ht]: [M, V], without a soft cap; for drafts without a head."""
        return self._head(x)


def _matrices(module: nn.Module) -> int:
    """Bytes of a module's weights that are not vectors."""
    return sum(weight.nbytes for _, weight in tree_flatten(module.parameters()) if weight.ndim > 1)


def _ours(cache: Any) -> bool:
    return isinstance(cache, FullCache | SlidingCache)


def _is_array(value: Any) -> bool:
    return isinstance(value, mx.array)
