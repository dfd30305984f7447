"""What is measured of a process and its machine."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest

from eagle3chat.engine import meter
from eagle3chat.engine.meter import Bandwidth, Memory, ProcessMeter, buffer_bytes, largest_cache_bytes


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_that_is_touched_is_resident_and_stays_in_the_peak() -> None:
    held = mmap.mmap(-1, 48 << 20)  # of the system, not of what an allocator kept from the tests before
    before = ProcessMeter().memory()
    for page in range(0, 48 << 20, mmap.PAGESIZE):
        held[page] = 1
    during = ProcessMeter().memory()
    assert before.resident is not None and during.resident is not None and during.peak_resident is not None
    assert during.resident - before.resident > 40 << 20
    held.close()
    after = ProcessMeter().memory()
    assert after.peak_resident is not None and after.resident is not None
    assert after.peak_resident > during.resident - (1 << 20)  # the kernel counts it now and then
    assert during.resident > after.resident + (40 << 20)
    assert (after.device, after.peak_device) == (None, None)


def test_a_buffer_is_larger_than_the_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, size in enumerate(("32K", "1024K", "96M")):
        (tmp_path / f"index{number}").mkdir()
        (tmp_path / f"index{number}" / "size").write_text(f"{size}\n")
    assert largest_cache_bytes(tmp_path) == 96 << 20
    assert largest_cache_bytes(tmp_path / "none") == 0
    for cache, wanted in ((0, 256 << 20), (96 << 20, 384 << 20), (1 << 30, 1 << 30)):
        monkeypatch.setattr(meter, "largest_cache_bytes", lambda cache=cache: cache)
        assert buffer_bytes() == wanted


def test_the_fastest_pass_is_the_bandwidth() -> None:
    found = Bandwidth.of(12, [4.0, 2.0, 3.0], 6, "a copy")
    assert found == Bandwidth(6.0, 4.0, 6, 3, "a copy")


def small(monkeypatch: pytest.MonkeyPatch, module: object) -> None:
    monkeypatch.setattr(module, "buffer_bytes", lambda: 1 << 20)
    monkeypatch.setattr(module, "PASSES", 3)


def test_torch_reads_with_the_threads_of_the_pair_and_gives_them_back(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from eagle3chat.engine import torch_meter

    small(monkeypatch, torch_meter)
    before = torch.get_num_threads()
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    found = torch_meter.TorchMeter("cpu", 3).bandwidth()
    assert asked == [3, before]
    assert (found.buffer_bytes, found.passes) == (1 << 20, 3)
    assert found.bytes_per_second >= found.median_bytes_per_second > 1e6
    assert isinstance(torch_meter.TorchMeter("cpu", 1).memory(), Memory)


def test_mlx_counts_its_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    mx = pytest.importorskip("mlx.core")
    from eagle3chat.engine import mlx_meter

    small(monkeypatch, mlx_meter)
    its = mlx_meter.MlxMeter("cpu")
    held = mx.ones((1 << 20,))
    mx.eval(held)
    memory = its.memory()
    assert memory.device is not None and memory.device >= held.nbytes
    assert memory.peak_device is not None and memory.peak_device >= memory.device
    assert its.bandwidth().bytes_per_second > 1e5
