"""Keys and values of the draft's confirmed rows: static buffers, and drafted rows beside them for one chain.

A row of the draft's own features never enters the buffers, so none can be left there by mistake. There is another
reason: MLX writes into a buffer in place only when nothing else on its way reads it, and the steps of a chain, which
are on their way together, would each copy the whole buffer instead. Knows no tokens.
"""

from __future__ import annotations

import mlx.core as mx


class DraftCache:
    """Of `layers` layers for `capacity` positions, [1, kv_heads, capacity, head_dim] each."""

    def __init__(self, layers: int, kv_heads: int, head_dim: int, capacity: int, dtype: mx.Dtype) -> None:
        shape = (1, kv_heads, capacity, head_dim)
        self.capacity = capacity
        self.rows = 0  # confirmed
        self.keys = [mx.zeros(shape, dtype) for _ in range(layers)]
        self.values = [mx.zeros(shape, dtype) for _ in range(layers)]
        self._beside: list[tuple[mx.array, mx.array] | None] = [None] * layers

    @property
    def arrays(self) -> list[mx.array]:
        """The buffers, to be evaluated once a round: an update that nobody asked for would keep its graph."""
        return [*self.keys, *self.values]

    @property
    def drafted(self) -> int:
        """Rows beside the confirmed ones."""
        first = self._beside[0]
        return 0 if first is None else int(first[0].shape[2])

    def confirm(self, layer: int, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write rows [1, kv, M, d] after the confirmed ones, without counting them; gives all up to there.

        What was drafted is dropped.
        """
        end = self.rows + keys.shape[2]
        assert end <= self.capacity, (end, self.capacity)
        self._beside[layer] = None
        self.keys[layer][:, :, self.rows : end] = keys
        self.values[layer][:, :, self.rows : end] = values
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]

    def draft(self, layer: int, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Put a row [1, kv, 1, d] beside the confirmed ones; gives all of both kinds."""
        beside = self._beside[layer]
        if beside is not None:
            keys, values = mx.concatenate((beside[0], keys), axis=2), mx.concatenate((beside[1], values), axis=2)
        self._beside[layer] = keys, values
        return (
            mx.concatenate((self.keys[layer][:, :, : self.rows], keys), axis=2),
            mx.concatenate((self.values[layer][:, :, : self.rows], values), axis=2),
        )

    def advance(self, rows: int) -> None:
        """Count `rows` more rows, already written."""
        assert self.rows + rows <= self.capacity, (self.rows, rows, self.capacity)
        self.rows += rows

    def keep(self, rows: int) -> None:
        """Drop all rows but the first `rows`."""
        assert 0 <= rows <= self.rows, (rows, self.rows)
        self.rows = rows
        self._beside = [None] * len(self.keys)
