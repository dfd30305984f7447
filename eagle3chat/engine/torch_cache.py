"""Keys and values of the tokens decoded so far: one static buffer, and the number of rows that count.

Rows are positions. Dropping rows is setting a number: what lies beyond is never read, since a reader
takes a slice, and the next pass writes over it. Knows no tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor


class KvCache:
    """Keys and values of `layers` layers for `capacity` positions.

    Args:
        layers, kv_heads, head_dim, capacity: Sizes; the buffer is [layers, 2 * kv_heads, capacity, head_dim].
        dtype: Of the activations.
    """

    def __init__(
        self, layers: int, kv_heads: int, head_dim: int, capacity: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.capacity = capacity
        self.rows = 0
        # Not filled: on a CPU the pages of a long context cost memory only once they are used.
        self.data = torch.empty(layers, 2 * kv_heads, capacity, head_dim, dtype=dtype, device=device)
        self.keys = [layer[:kv_heads, None] for layer in self.data]  # each [kv, 1, capacity, d]
        self.values = [layer[kv_heads:, None] for layer in self.data]
        self.both = list(self.data)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole buffer."""
        return int(self.data.nbytes)

    def write(self, layer: int, start: int, kv: Tensor) -> None:
        """Put [M, 2 * kv_heads, d] (keys, then values) at positions start .. start + M - 1."""
        self.both[layer].narrow(1, start, kv.shape[0]).copy_(kv.transpose(0, 1))

    def read(self, layer: int, rows: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the first `rows` positions, [kv, 1, rows, d] each, not copied."""
        return self.keys[layer].narrow(2, 0, rows), self.values[layer].narrow(2, 0, rows)

    def keep(self, rows: int) -> None:
        """Drop all rows but the first `rows`."""
        assert 0 <= rows <= self.rows, (rows, self.rows)
        self.rows = rows

    def advance(self, rows: int) -> None:
        """Count `rows` more rows, already written."""
        assert self.rows + rows <= self.capacity, (self.rows, rows, self.capacity)
        self.rows += rows
