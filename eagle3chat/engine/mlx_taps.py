"""The residual stream at layer boundaries, taken from any mlx-lm decoder without touching its code.

Python looks `__call__` up on the type, so the *class* of each tapped layer instance is replaced by a subclass that
passes the call on and keeps what goes in or comes out. Parameters, attributes and isinstance stay as they
were, and no other model of that class is affected. What is kept are graph nodes: nothing is evaluated here, and
`take` lets go of them, since a graph that is held keeps its inputs alive. Knows no cache and no tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn


class Taps:
    """The boundaries of one model. Layers are tapped for good: build one per model.

    Args:
        layers: The model's own, in order.
        boundaries: Ascending; 0 = what layer 0 is given, b = what layer b - 1 gives back.

    Raises:
        ValueError: A layer instance is in the list twice, so that an output does not tell its boundary.
    """

    def __init__(self, layers: Sequence[nn.Module], boundaries: Sequence[int]) -> None:
        assert list(boundaries) == sorted(set(boundaries)) and boundaries, boundaries
        assert boundaries[0] >= 0 and boundaries[-1] <= len(layers), (boundaries, len(layers))
        if len({id(layer) for layer in layers}) != len(layers):
            raise ValueError("it uses one layer several times")
        self.boundaries = tuple(boundaries)
        self._seen: dict[int, Any] = {}
        for index, layer in enumerate(layers):
            enters = index if index == 0 and 0 in self.boundaries else None
            leaves = index + 1 if index + 1 in self.boundaries else None
            if enters is not None or leaves is not None:
                layer.__class__ = _tapped(type(layer), self, enters, leaves)

    def clear(self) -> None:
        """Forget what an earlier pass left."""
        self._seen.clear()

    def take(self, rows: int) -> mx.array:
        """The taps of the pass since `clear`, side by side in ascending order of boundary: [rows, A * Ht].

        Raises:
            ValueError: A boundary was not passed, or not by one array [1, rows, Ht].
        """
        seen = dict(self._seen)
        self._seen.clear()
        for boundary in self.boundaries:
            stream = seen.get(boundary)
            if not isinstance(stream, mx.array):
                raise ValueError(f"its residual stream is not to be had at boundary {boundary}")
            if stream.ndim != 3 or stream.shape[:2] != (1, rows):
                raise ValueError(f"boundary {boundary} has the shape {stream.shape}, not [1, {rows}, width]")
        return mx.concatenate([seen[boundary][0] for boundary in self.boundaries], axis=-1)

    def put(self, boundary: int, stream: Any) -> None:
        """Keep the stream at a boundary; for the layers.

        Raises:
            ValueError: The boundary was already passed since `clear`.
        """
        if boundary in self._seen:
            raise ValueError(f"it passes boundary {boundary} twice in one pass")
        self._seen[boundary] = stream


def _tapped(base: type, taps: Taps, enters: int | None, leaves: int | None) -> type:
    """A subclass for one layer instance, which keeps its input at `enters` and its output at `leaves`."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if enters is not None:
            taps.put(enters, args[0] if args else next(iter(kwargs.values())))
        out = base.__call__(self, *args, **kwargs)
        if leaves is not None:
            taps.put(leaves, out[0] if isinstance(out, tuple) else out)  # others: what they share between layers
        return out

    return type(f"Tapped{base.__name__}", (base,), {"__call__": call})
