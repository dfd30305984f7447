"""The memory of a round on the device: tensors that are made once, and whose addresses recorded work knows.

What the host tells the device goes through an inbox: numbers in pinned memory, copied without a wait. What the device
tells the host comes back as one table a round. Knows no model and no work.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from eagle3chat.engine.torch_choice import COLUMNS
from eagle3chat.engine.torch_target import Target


class Inbox:
    """Int64 numbers that the host writes and the device reads, `size` of them.

    The device may write `data` as well; the host writes over what it names.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.data = torch.zeros(size, dtype=torch.int64, device=device)
        self._host = torch.zeros(size, dtype=torch.int64, pin_memory=pinned)
        self._sent = torch.cuda.Event() if pinned else None

    def send(self, values: Sequence[int]) -> None:
        """Write the first numbers. Waits only when the copy before this one has not been made yet."""
        if self._sent is not None and not self._sent.query():
            self._sent.synchronize()
        count = len(values)
        self._host[:count] = torch.tensor(values, dtype=torch.int64)
        self.data[:count].copy_(self._host[:count], non_blocking=True)
        if self._sent is not None:
            self._sent.record()


class Outbox:
    """A float32 table [rows, columns] that the device writes and the host reads."""

    def __init__(self, rows: int, columns: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.data = torch.zeros(rows, columns, device=device)
        self._host = torch.zeros(rows, columns, pin_memory=pinned)
        self._done = torch.cuda.Event() if pinned else None

    def launch(self, rows: int) -> None:
        """Start to copy the first rows."""
        self._host[:rows].copy_(self.data[:rows], non_blocking=True)
        if self._done is not None:
            self._done.record()

    def read(self, rows: int) -> list[list[float]]:
        """The rows that were launched: the round's wait."""
        if self._done is not None:
            self._done.synchronize()  # host sync
        return self._host[:rows].tolist()


class State:
    """A round's tensors.

    Args:
        rows: Of a pass at most: drafted tokens and the anchor, or confirmed rows that wait for the draft.
        tap_width: A * Ht; 0: no draft.
    """

    def __init__(self, target: Target, rows: int, tap_width: int) -> None:
        device, dtype = target.precision.device, target.precision.dtype
        vocabulary = target.config.vocab_size
        # Written by the host when it and the device part ways, and by recorded work.
        self.counters = Inbox(4, device)
        self.target_rows, self.draft_rows, self.count, self.anchor = self.counters.data.split(1)
        # Written by the host alone: position of the sliding buffer's first row, then two keys a row.
        self.said = Inbox(1 + 2 * rows, device)
        self.shift, self.keys = self.said.data[:1], self.said.data[1:].view(rows, 2)
        self.zero = torch.zeros(1, dtype=torch.int64, device=device)
        self.offsets = torch.arange(rows, device=device)
        self.tokens = torch.zeros(rows, dtype=torch.int64, device=device)  # the anchor, then the proposals
        self.p = torch.zeros(rows, device=device)  # of the proposals
        self.ids = torch.zeros(rows, dtype=torch.int64, device=device)  # of confirmed rows: the token after each
        self.taps = torch.zeros(rows, tap_width, dtype=dtype, device=device)
        self.noise = torch.zeros(rows, vocabulary, device=device)
        self.table = Outbox(rows, COLUMNS + 2, device)

    @property
    def changing(self) -> tuple[Tensor, ...]:
        """What recorded work both reads and writes."""
        return self.counters.data, self.tokens, self.p, self.ids, self.taps, self.noise

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        parts = (*self.changing, self.said.data, self.zero, self.offsets, self.table.data)
        return sum(part.nbytes for part in parts)
