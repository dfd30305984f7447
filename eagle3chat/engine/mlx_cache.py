"""Keys and values of one attention on MLX, in the shape that mlx-lm's models ask for, with exact rollback.

mlx-lm calls `make_mask` on one cache of a kind before a pass, reads `offset` for the rotary positions, and hands
the new rows to `update_and_fetch`, which gives back those that the new ones attend to. Both caches here are linear
buffers whose rows lie in the order of positions, so that dropping rows is setting a number: what lies beyond is
never handed out, and the next pass writes over it. Nothing is evaluated here. Knows no tokens and no layers.
"""

from __future__ import annotations

import mlx.core as mx

STEP = 256  # rows by which a buffer grows


def visible(first: int, offset: int, rows: int, window: int) -> mx.array:
    """Which keys each query sees, bool [rows, keys]: those at or before it, and with a window (> 0) the last of them.

    Args:
        first: Position of the first key; the last one is that of the last query.
        offset: Position of the first query.
        rows: Queries.
    """
    keys = mx.arange(first, offset + rows)
    queries = mx.arange(offset, offset + rows)[:, None]
    seen = keys <= queries
    return seen & (keys > queries - window) if window else seen


class FullCache:
    """Keys and values of all positions so far.

    Args:
        capacity: Positions that it may hold.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.offset = 0  # rows that count; the position of the next one
        self._keys: mx.array | None = None  # [1, kv_heads, size, d]
        self._values: mx.array | None = None

    def make_mask(
        self, N: int, window_size: int | None = None, return_array: bool = False
    ) -> mx.array | str | None:  # the names are mlx-lm's
        """The mask of a pass of N rows; None: each sees all."""
        if window_size is not None and self.offset + N > window_size:
            return visible(0, self.offset, N, window_size)
        if N == 1:
            return None
        return visible(0, self.offset, N, 0) if return_array else "causal"

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append rows [1, kv_heads, N, d]; gives all rows from position 0 on."""
        start, end = self.offset, self.offset + keys.shape[2]
        assert end <= self.capacity, (end, self.capacity)
        if self._keys is None or end > self._keys.shape[2]:
            size = min(-(-end // STEP) * STEP, self.capacity)
            self._keys = _resized(self._keys, start, keys, size)
            self._values = _resized(self._values, start, values, size)
        self._keys[:, :, start:end] = keys
        self._values[:, :, start:end] = values
        self.offset = end
        return self._keys[:, :, :end], self._values[:, :, :end]

    def can_keep(self, rows: int) -> bool:
        """Whether the rows after the first `rows` can be dropped."""
        return 0 <= rows <= self.offset

    def keep(self, rows: int) -> None:
        """Drop all rows but the first `rows`."""
        assert self.can_keep(rows), (rows, self.offset)
        self.offset = rows

    @property
    def state(self) -> tuple[mx.array, ...]:
        """The buffers, to be evaluated; empty before the first pass."""
        return () if self._keys is None else (self._keys, self._values)

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        return sum(buffer.nbytes for buffer in self.state)


class SlidingCache:
    """Keys and values of the last positions, for attention that sees itself and window - 1 positions before it.

    The buffer holds window - 1 + 2 * slack rows at most. When it is full, the last window - 1 + slack go to its front,
    so a shift happens every `slack` rows or less often. A pass of more rows than fit is handed out from a
    temporary. Whatever the row counts of passes and the rows dropped between them were, a pass of N rows is handed
    min(offset, window - 1) + N rows: the layout that `make_mask` tells depends on the offset alone.

    Args:
        window: Positions that a query sees, itself included.
        slack: Rows that can always be dropped again, counted from the furthest row that was written.
    """

    def __init__(self, window: int, slack: int) -> None:
        assert window > 0 and slack > 0, (window, slack)
        self.window, self.slack = window, slack
        self.offset = 0  # rows so far; the position of the next one
        self._start = 0  # position of the buffer's first row
        self._keys: mx.array | None = None  # [1, kv_heads, size, d]
        self._values: mx.array | None = None

    def make_mask(
        self, N: int, window_size: int | None = None, return_array: bool = False
    ) -> mx.array | str | None:  # the names are mlx-lm's
        """The mask of a pass of N rows; None: each sees all that it is handed."""
        window = min(window_size or self.window, self.window)
        before = min(self.offset, self.window - 1)
        if before + N > window or (return_array and N > 1):
            return visible(self.offset - before, self.offset, N, window)
        return None if N == 1 else "causal"

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append rows [1, kv_heads, N, d]; gives them and the min(offset, window - 1) rows before them."""
        end = self.offset + keys.shape[2]
        first = self._oldest(self.offset)
        assert first >= self._start, (first, self._start)
        if self._keys is None or end - self._start > self._keys.shape[2]:
            return self._refill(keys, values, first)
        low, at = first - self._start, self.offset - self._start
        self._keys[:, :, at : end - self._start] = keys
        self._values[:, :, at : end - self._start] = values
        self.offset = end
        return self._keys[:, :, low : end - self._start], self._values[:, :, low : end - self._start]

    def _oldest(self, position: int) -> int:
        """The first position that a query at `position` sees."""
        return max(0, position - self.window + 1)

    def _refill(self, keys: mx.array, values: mx.array, first: int) -> tuple[mx.array, mx.array]:
        """Append rows that the buffer has no room for: into a new one, without the rows that no one can need."""
        end = self.offset + keys.shape[2]
        # Needed from here on: by this pass, and after dropping up to `slack` rows again.
        base = max(self._start, min(first, self._oldest(end - self.slack)))
        if self._keys is not None:
            old = slice(base - self._start, self.offset - self._start)
            keys = mx.concatenate([self._keys[:, :, old], keys], axis=2)
            values = mx.concatenate([self._values[:, :, old], values], axis=2)
        start = max(base, end - (self.window - 1 + self.slack))
        size = min(-(-(end - start + 1) // STEP) * STEP, self.window - 1 + 2 * self.slack)
        kept = keys[:, :, start - base :], values[:, :, start - base :]
        self._keys = _resized(kept[0], end - start, keys, size)
        self._values = _resized(kept[1], end - start, values, size)
        self._start, self.offset = start, end
        return keys[:, :, first - base :], values[:, :, first - base :]

    def can_keep(self, rows: int) -> bool:
        """Whether the rows after the first `rows` can be dropped: those that a query there sees are still held."""
        return 0 <= rows <= self.offset and self._oldest(rows) >= self._start

    def keep(self, rows: int) -> None:
        """Drop all rows but the first `rows`."""
        assert self.can_keep(rows), (rows, self.offset, self._start)
        self.offset = rows

    @property
    def state(self) -> tuple[mx.array, ...]:
        """The buffers, to be evaluated; empty before the first pass."""
        return () if self._keys is None else (self._keys, self._values)

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        return sum(buffer.nbytes for buffer in self.state)


def _resized(buffer: mx.array | None, rows: int, like: mx.array, size: int) -> mx.array:
    """A buffer of `size` rows that begins with the first `rows` of `buffer`."""
    batch, heads, _, width = like.shape
    if buffer is None or rows == 0:
        return mx.zeros((batch, heads, size, width), like.dtype)
    rest = mx.zeros((batch, heads, size - rows, width), like.dtype)
    return mx.concatenate([buffer[:, :, :rows], rest], axis=2)
