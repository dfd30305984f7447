"""Memory and read bandwidth of torch's devices. Knows no model."""

from __future__ import annotations

import time

import torch

from eagle3chat.engine.meter import PASSES, Bandwidth, Memory, buffer_bytes, peak_resident_bytes, resident_bytes

DEVICE_BUFFER = 1 << 30  # larger than any GPU's cache


class TorchMeter:
    """See meter.Meter.

    Args:
        device: "cpu", "cuda", "cuda:N".
        threads: That read on a CPU.
    """

    def __init__(self, device: str, threads: int) -> None:
        self._device, self._threads = torch.device(device), threads

    def bandwidth(self) -> Bandwidth:
        """The fastest of a few sums over a large buffer on a CPU, of a few copies within the device on CUDA."""
        return self._sums() if self._device.type == "cpu" else self._copies()

    def _sums(self) -> Bandwidth:
        before = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        x = torch.ones(buffer_bytes() // 4)  # written, so that every page is there
        seconds = []
        for _ in range(PASSES):
            started = time.perf_counter()
            x.sum()
            seconds.append(time.perf_counter() - started)
        torch.set_num_threads(before)
        return Bandwidth.of(x.nbytes, seconds, x.nbytes, f"torch sum, {self._threads} threads")

    def _copies(self) -> Bandwidth:
        x = torch.ones(DEVICE_BUFFER // 4, device=self._device)
        y = torch.empty_like(x)
        times = []
        for _ in range(PASSES):
            started, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            started.record()
            y.copy_(x)
            ended.record()
            ended.synchronize()
            times.append(started.elapsed_time(ended) / 1000.0)
        return Bandwidth.of(2 * x.nbytes, times, x.nbytes, "device copy, read and written")

    def memory(self) -> Memory:
        """The process's; on CUDA the allocator's too."""
        resident, peak = resident_bytes(), peak_resident_bytes()
        if self._device.type != "cuda":
            return Memory(resident, peak)
        held, most = (of(self._device) for of in (torch.cuda.memory_allocated, torch.cuda.max_memory_allocated))
        return Memory(resident, peak, held, most)
