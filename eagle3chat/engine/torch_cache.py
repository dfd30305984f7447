"""Keys and values of the tokens decoded so far, and the number of rows that count.

Rows are positions. Dropping rows is setting a number: what lies beyond is never read, since a reader takes a slice,
and the next pass writes over it. Layers that see all positions have one buffer for all of them; layers that see a
window have a short one, which moves on. Knows no tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from eagle3chat.engine.config import TargetConfig

SLACK = 512  # rows of a sliding buffer beyond its window


class KvCache:
    """Keys and values of `layers` layers for `capacity` positions.

    Args:
        layers, kv_heads, head_dim, capacity: Sizes; the buffer is [layers, 2 * kv_heads, capacity, head_dim].
        dtype: Of the activations.
    """

    window = 0  # positions that a row sees; 0: all

    def __init__(
        self, layers: int, kv_heads: int, head_dim: int, capacity: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.capacity = capacity
        self.rows = 0
        self.first = 0  # position of the buffer's first row
        self.moves = 0  # times that the buffer was another one
        # Not filled: on a CPU the pages of a long context cost memory only once they are used.
        self._hold(torch.empty(layers, 2 * kv_heads, capacity, head_dim, dtype=dtype, device=device))

    def _hold(self, data: Tensor) -> None:
        kv_heads = data.shape[1] // 2
        self.data = data
        self.moves += 1
        self.keys = [layer[:kv_heads, None] for layer in data]  # each [kv, 1, capacity, d]
        self.values = [layer[kv_heads:, None] for layer in data]
        self.both = list(data)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole buffer."""
        return int(self.data.nbytes)

    def place(self, layer: int) -> tuple[KvCache, int]:
        """The cache and the place in it that a layer of the target reads."""
        return self, layer

    @property
    def parts(self) -> tuple[KvCache, ...]:
        """The buffers there are: this one."""
        return (self,)

    def prepare(self, rows: int) -> None:
        """Make room for a pass of so many rows."""
        assert self.rows + rows <= self.capacity, (self.rows, rows, self.capacity)

    def put(self, layer: int, slots: Tensor, kv: Tensor) -> None:
        """Put [M, 2 * kv_heads, d] into rows of the buffer that the device knows, int64 [M]."""
        self.both[layer].index_copy_(1, slots, kv.transpose(0, 1))

    def front(self, layer: int, slots: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the buffer's first rows, [kv, 1, slots, d] each, not copied."""
        return self.keys[layer].narrow(2, 0, slots), self.values[layer].narrow(2, 0, slots)

    def blank(self) -> None:
        """Overwrite what lies beyond the rows that count: shares of 0 may then be multiplied with it."""
        self.data[:, :, self.rows - self.first :].zero_()

    def write(self, layer: int, start: int, kv: Tensor) -> None:
        """Put [M, 2 * kv_heads, d] (keys, then values) at positions start .. start + M - 1."""
        self.both[layer].narrow(1, start, kv.shape[0]).copy_(kv.transpose(0, 1))

    def read(self, layer: int, rows: int, first: int = 0) -> tuple[Tensor, Tensor]:
        """Keys and values of the positions first .. rows - 1, [kv, 1, rows - first, d] each, not copied."""
        count = rows - first
        return self.keys[layer].narrow(2, first, count), self.values[layer].narrow(2, first, count)

    def holds(self, rows: int) -> bool:
        """Whether all that the row after the first `rows` sees is there."""
        return 0 <= rows <= self.rows

    def keep(self, rows: int) -> int:
        """Drop all rows but the first `rows`; gives how many are left."""
        assert self.holds(rows), (rows, self.rows)
        self.rows = rows
        return rows

    def advance(self, rows: int) -> None:
        """Count `rows` more rows, already written."""
        assert self.rows + rows <= self.capacity, (self.rows, rows, self.capacity)
        self.rows += rows


class SlidingCache(KvCache):
    """Of layers in which a position sees itself and the `window` - 1 before it.

    The buffer holds the positions from `first` on, in order. A pass that does not fit moves the ones that it sees, and
    half of the slack before them, to the front: by so many rows the caches can go back at least. A pass longer than
    the other half makes the buffer longer. Its size does not depend on the context.

    Args:
        window: Positions that a row sees.
        slack: Rows beyond window - 1.
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        window: int,
        slack: int,
    ) -> None:
        super().__init__(layers, kv_heads, head_dim, min(capacity, window - 1 + slack), dtype, device)
        self.capacity, self.window, self.back = capacity, window, slack // 2

    def prepare(self, rows: int) -> None:
        """Make room for a pass of so many rows."""
        super().prepare(rows)
        if self.rows + rows - self.first <= self.data.shape[2]:
            return
        first = max(self.first, self.rows - (self.window - 1) - self.back)
        count, needed = self.rows - first, self.rows + rows - first
        old, offset = self.both, first - self.first
        if needed > self.data.shape[2]:
            layers, heads, _, d = self.data.shape
            self._hold(self.data.new_zeros(layers, heads, needed, d))
        for before, after in zip(old, self.both, strict=True):
            after.narrow(1, 0, count).copy_(before.narrow(1, offset, count).clone())  # they may overlap
        self.first = first

    def write(self, layer: int, start: int, kv: Tensor) -> None:
        """Put [M, 2 * kv_heads, d] (keys, then values) at positions start .. start + M - 1."""
        super().write(layer, start - self.first, kv)

    def read(self, layer: int, rows: int, first: int = 0) -> tuple[Tensor, Tensor]:
        """Keys and values of the positions first .. rows - 1, which must be there."""
        assert first >= self.first, (first, self.first)
        return super().read(layer, rows - self.first, first - self.first)

    def holds(self, rows: int) -> bool:
        """Whether all that the row after the first `rows` sees is there."""
        return 0 <= rows <= self.rows and (rows == 0 or self.first <= max(0, rows - self.window + 1))

    def keep(self, rows: int) -> int:
        """Drop all rows but the first `rows`, which it must hold; it always holds none."""
        super().keep(rows)
        if rows == 0:
            self.first = 0
        return rows


class Caches:
    """Those of a target whose layers differ: one for each kind of attention, with the same number of rows.

    Args:
        parts: The caches.
        places: The part and the place in it that each layer reads.
    """

    def __init__(self, parts: tuple[KvCache, ...], places: tuple[tuple[KvCache, int], ...]) -> None:
        self.parts, self._places = parts, places
        self.capacity = parts[0].capacity

    @property
    def rows(self) -> int:
        """Rows that count."""
        return self.parts[0].rows

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(part.nbytes for part in self.parts)

    def place(self, layer: int) -> tuple[KvCache, int]:
        """The cache and the place in it that a layer of the target reads."""
        return self._places[layer]

    def prepare(self, rows: int) -> None:
        """Make room for a pass of so many rows."""
        for part in self.parts:
            part.prepare(rows)

    def keep(self, rows: int) -> int:
        """Drop all rows but the first `rows`, or all where a window has passed over what they need.

        Returns:
            How many rows are left: `rows` or 0.
        """
        assert 0 <= rows <= self.rows, (rows, self.rows)
        left = rows if all(part.holds(rows) for part in self.parts) else 0
        for part in self.parts:
            part.keep(left)
        return left

    def advance(self, rows: int) -> None:
        """Count `rows` more rows, already written."""
        for part in self.parts:
            part.advance(rows)


def target_cache(config: TargetConfig, capacity: int, dtype: torch.dtype, device: torch.device) -> KvCache | Caches:
    """The caches of a target; layers that read another's have none of their own."""
    own = [layer for layer in range(config.num_layers) if config.cache_layer(layer) == layer]
    windowed = [layer for layer in own if config.kind(layer).window]
    if not windowed and len(own) == config.num_layers:
        return KvCache(config.num_layers, config.num_kv_heads, config.head_dim, capacity, dtype, device)
    full = [layer for layer in own if not config.kind(layer).window]
    parts, where = [], {}
    for layers in (full, windowed):
        if not layers:
            continue
        kind = config.kind(layers[0])
        sizes = (len(layers), kind.num_kv_heads, kind.head_dim, capacity, dtype, device)
        part = SlidingCache(*sizes, window=kind.window, slack=SLACK) if kind.window else KvCache(*sizes)
        parts.append(part)
        where |= {layer: (part, place) for place, layer in enumerate(layers)}
    return Caches(tuple(parts), tuple(where[config.cache_layer(layer)] for layer in range(config.num_layers)))
