"""The noise of positions in MLX: the same bits as `engine.sampling.noise_bits`, for the whole vocabulary.

The keys of a position come from the host; everything here is elementwise and lazy.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from eagle3chat.engine.sampling import ID_STEP, V_MAX, noise_key


def _word(value: int) -> mx.array:
    """A 32-bit constant; Python's own integers would widen or wrap the product."""
    return mx.array(value, dtype=mx.uint32)


def _mix(x: mx.array) -> mx.array:
    """The finaliser of `sampling._mix32`, of uint32, whose products wrap."""
    x = (x ^ (x >> 16)) * _word(0x7FEB352D)
    x = (x ^ (x >> 15)) * _word(0x846CA68B)
    return x ^ (x >> 16)


def _bits(steps: mx.array, keys: mx.array) -> mx.array:
    first, second = keys[:, :1], keys[:, 1:]
    return _mix(_mix(steps + first) ^ second)


def _gumbel(steps: mx.array, keys: mx.array) -> mx.array:
    v = mx.minimum((_bits(steps, keys).astype(mx.float32) + 0.5) * 2.0**-32, V_MAX)
    return -mx.log(-mx.log1p(-v))


class Noise:
    """Gumbel noise over a vocabulary of V ids.

    Args:
        vocabulary: V.
        fused: Whether the operations become one kernel. On a CPU that would need a compiler at run time.
    """

    def __init__(self, vocabulary: int, fused: bool = False) -> None:
        self._steps = mx.arange(vocabulary, dtype=mx.uint32) * _word(ID_STEP)
        self._gumbel = mx.compile(_gumbel) if fused else _gumbel

    def bits(self, seed: int, positions: Sequence[int]) -> mx.array:
        """Uint32 [len(positions), V], equal to `noise_bits`."""
        return _bits(self._steps, _keys(seed, positions))

    def gumbel(self, seed: int, positions: Sequence[int]) -> mx.array:
        """Float32 [len(positions), V]: -log(-log1p(-v)), v = (bits + 0.5) / 2**32, clamped below 1."""
        return self._gumbel(self._steps, _keys(seed, positions))


def _keys(seed: int, positions: Sequence[int]) -> mx.array:
    """Uint32 [len(positions), 2]."""
    return mx.array([noise_key(seed, position) for position in positions], dtype=mx.uint32)
