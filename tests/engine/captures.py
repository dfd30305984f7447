"""Stand-ins for CUDA graphs on a CPU: a recording runs the work again.

`Strict` also refuses, while work runs, what a real recording would refuse or silently get wrong: a wait for the
device, a shape that hangs on a value, host numbers put on the device, and memory that the work was not given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from eagle3chat.engine.torch_graphs import CaptureError

WAITS = ("_local_scalar_dense", "item", "equal", "is_nonzero")
SHAPES = ("nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount")


class Refused(CaptureError):
    """What a recording may not hold."""


class Watch(TorchDispatchMode):
    """Refuses operators; counts those that run."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        kwargs = kwargs or {}
        if name in WAITS:
            raise Refused(f"{name} waits for the device")
        if name in SHAPES:
            raise Refused(f"{name} has a shape that hangs on a value")
        if name in ("index", "index_put", "index_put_") and any(
            part is not None and part.dtype in (torch.bool, torch.uint8) for part in args[1]
        ):
            raise Refused(f"{name} by a mask has a shape that hangs on a value")
        if name == "repeat_interleave" and func._overloadname in ("Tensor", "self_Tensor"):
            raise Refused("repeat_interleave by a tensor has a shape that hangs on a value")
        if name in ("lift_fresh", "lift", "scalar_tensor"):
            raise Refused("a number of the host's becomes a tensor: a recording would keep the one of today")
        self.count += 1
        return func(*args, **kwargs)


class Again:
    """Runs the work again on every start."""

    def __init__(self) -> None:
        self.recorded = self.started = 0

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        self.recorded += 1
        work()

        def start() -> None:
            self.started += 1
            work()

        return start


class Strict(Again):
    """See the module."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        def watched() -> None:
            with Watch() as watch:
                work()
            assert watch.count, "the work did nothing that a recording could see"

        return super().record(watched)


class Broken:
    """Records `good` times, then never again."""

    def __init__(self, good: int) -> None:
        self.good = good

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        work()
        if not self.good:
            raise CaptureError("no more graphs")
        self.good -= 1
        return work
