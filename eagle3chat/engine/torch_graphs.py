"""Work on a device that is recorded once and then started as one launch: CUDA graphs, kept by what they compute.

What is recorded reads and writes memory of its own, at addresses that stay, and asks the host nothing (see
torch_rounds.py). A recording is made when it is first needed; the work is run once before, on the stream of the
recording, so that kernels are compiled and libraries set up. Recordings share one pool of memory for what lies between
their inputs and outputs: no two of them run at once. A recording that fails turns all of them off, with the reason.
EAGLE3CHAT_GRAPHS=off turns them off beforehand. Knows no model.

Sources: the CUDA graphs notes of torch's documentation (2.13).
"""

from __future__ import annotations

import os
import subprocess
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

import torch
from torch import Tensor

SWITCH = "EAGLE3CHAT_GRAPHS"
LIMIT = 48  # recordings kept: two for each chain of 0 to 8, under a few samplings

Work = Callable[[], None]


class CaptureError(Exception):
    """Work cannot be recorded here. The text is one line, and the work's memory may have been written to."""


class Capture(Protocol):
    """Makes recordings. Tests have others that record nothing."""

    def record(self, work: Work) -> Work:
        """Run `work` once, record it, and give what starts the recording.

        Raises:
            CaptureError: It does something that cannot be recorded.
        """


class CudaCapture:
    """Records CUDA graphs.

    Args:
        device: A CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()

    def record(self, work: Work) -> Work:
        """See Capture."""
        before = torch.cuda.current_stream(self.stream.device)
        graph = torch.cuda.CUDAGraph()
        try:
            self.stream.wait_stream(before)
            with torch.cuda.stream(self.stream):
                work()
            before.wait_stream(self.stream)
            # Other threads go on as they like: one that prints may free pinned memory.
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
                work()
        except (*_compiler_errors(), RuntimeError, OSError, subprocess.SubprocessError) as error:
            torch.cuda.set_stream(before)  # a capture that breaks leaves its own stream behind as the current one
            raise CaptureError(_first_line(error)) from error
        return graph.replay


def _compiler_errors() -> tuple[type[Exception], ...]:
    """What triton raises beyond RuntimeError."""
    try:
        from triton.errors import TritonError
    except ImportError:
        return ()
    return (TritonError,)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


class Graphs:
    """Recordings by key, the ones used last.

    Args:
        capture: None: off, for `reason`.
        reason: Why they are off; empty: on.
        limit: Recordings kept.
    """

    def __init__(self, capture: Capture | None, reason: str = "", limit: int = LIMIT) -> None:
        assert (capture is None) == bool(reason)
        self._capture, self._limit = capture, limit
        self._kept: OrderedDict[Hashable, Work] = OrderedDict()
        self._addresses: Hashable = None
        self.reason = reason
        self.failed = False
        self.recorded = 0  # in all

    @property
    def on(self) -> bool:
        """Whether anything can be recorded."""
        return not self.reason

    def __len__(self) -> int:
        return len(self._kept)

    def clear(self) -> None:
        """Drop all recordings."""
        self._kept.clear()

    def get(self, key: Hashable, addresses: Hashable, work: Work, state: Sequence[Tensor]) -> Work | None:
        """The recording of `key`, made if there is none; None: it failed, and all are off.

        Args:
            key: Says what `work` computes.
            addresses: Of memory that may be given up for other; when they change, every recording is dropped.
            work: See the module.
            state: What `work` writes and the caller must find as it was.
        """
        if not self.on:
            return None
        if addresses != self._addresses:
            self.clear()
            self._addresses = addresses
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            return found
        before = [part.clone() for part in state]
        try:
            made = self._capture.record(work)
        except CaptureError as error:
            self.reason, self.failed = str(error), True
            self.clear()
            return None
        finally:
            for part, kept in zip(state, before, strict=True):
                part.copy_(kept)
        self.recorded += 1
        self._kept[key] = made
        if len(self._kept) > self._limit:
            self._kept.popitem(last=False)
        return made


def pick_graphs(device: torch.device) -> Graphs:
    """Those of a device: CUDA graphs unless they are switched off."""
    if device.type != "cuda":
        return Graphs(None, "only on CUDA")
    if why := switched_off():
        return Graphs(None, why)
    return Graphs(CudaCapture(device))


def switched_off() -> str:
    """Why the user has none; empty: the switch is on."""
    return f"{SWITCH}=off" if os.environ.get(SWITCH, "").strip().lower() == "off" else ""
