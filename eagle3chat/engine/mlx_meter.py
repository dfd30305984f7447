"""Memory and read bandwidth of MLX's devices. Knows no model."""

from __future__ import annotations

import time

import mlx.core as mx

from eagle3chat.engine.meter import PASSES, Bandwidth, Memory, buffer_bytes, peak_resident_bytes, resident_bytes
from eagle3chat.engine.mlx_device import pick_device


class MlxMeter:
    """See meter.Meter.

    Args:
        device: "cpu" or "gpu".
    """

    def __init__(self, device: str) -> None:
        self._device = pick_device(device)

    def bandwidth(self) -> Bandwidth:
        """The fastest of a few sums over a large buffer."""
        with mx.stream(self._device):
            x = mx.ones((buffer_bytes() // 4 // 1024, 1024))
            mx.eval(x)
            seconds = []
            for _ in range(PASSES):
                started = time.perf_counter()
                mx.eval(x.sum())
                seconds.append(time.perf_counter() - started)
        return Bandwidth.of(x.nbytes, seconds, x.nbytes, "mlx sum")

    def memory(self) -> Memory:
        """The process's and MLX's own, which on a Mac are the same memory."""
        return Memory(resident_bytes(), peak_resident_bytes(), mx.get_active_memory(), mx.get_peak_memory())
