"""What the target says about conversations, computed once and kept on disk: taps, final states, best tokens.

A shard is a safetensors file with the rows of some conversations behind each other:

    taps    [P, A * Ht]  bfloat16, of every position but the last
    normed  [R, Ht]      bfloat16, the normed final state at the positions that say the reply's tokens
    best    [R]          int32, the target's most probable token there, of the whole vocabulary
    top, sum  [R]        float32, its logit, and the logarithm of the sum of all exp(logit)

With the head's rows of a draft vocabulary `normed` gives the target's distribution over it, so epochs over a store need
no target. Knows no draft's weights and no loss.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from eagle3chat.engine.torch_target import Target
from eagle3chat.train.conversations import Conversation

SHARD_TOKENS = 16384
HEAD_ROWS = 256  # of the whole vocabulary's logits at a time
INDEX = "index.jsonl"


@dataclass(frozen=True, slots=True)
class Features:
    """What the target says about one conversation of L tokens whose reply begins at s.

    Args:
        ids: int64 [L].
        start: s.
        taps: [L - 1, A * Ht], of positions 0 .. L - 2.
        normed: [L - s, Ht], of positions s - 1 .. L - 2: row i says reply token i.
        best: int64 [L - s].
        top, sum: float32 [L - s].
    """

    ids: Tensor
    start: int
    taps: Tensor
    normed: Tensor
    best: Tensor
    top: Tensor
    sum: Tensor


@torch.inference_mode()
def observe(target: Target, ids: Sequence[int], start: int) -> Features:
    """One pass of the target over a conversation, from an empty cache, which is left empty."""
    tokens = torch.tensor(ids, dtype=torch.int64, device=target.precision.device)
    target.cache.keep(0)
    normed, taps = target(tokens[:-1])
    assert taps is not None
    said = normed[start - 1 :]
    best, top, total = [], [], []
    for rows in said.split(HEAD_ROWS):
        logits = target.logits(rows)
        high, place = logits.max(-1)
        best.append(place)
        top.append(high)
        total.append(logits.logsumexp(-1))
    return Features(tokens, start, taps, said, torch.cat(best), torch.cat(top), torch.cat(total))


class Store:
    """Features on disk. Made by `fill`; one that was interrupted goes on where it stopped.

    Args:
        path: A directory of its own; made when it is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self._where: dict[str, tuple[str, int, int, int, int]] = {}  # key -> shard, row, rows, reply row, reply rows
        self._open: dict[str, object] = {}
        self.refresh()

    def refresh(self) -> None:
        """See what another process has added."""
        index = self.path / INDEX
        for line in index.read_text().splitlines() if index.is_file() else ():
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # cut off by a crash: its shard is computed again
            for key, *place in entry["conversations"]:
                self._where[key] = (entry["shard"], *place)

    def __contains__(self, conversation: Conversation) -> bool:
        return conversation.key in self._where

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        return sum(file.stat().st_size for file in self.path.glob("*.safetensors"))

    def fill(
        self, target: Target, conversations: Sequence[Conversation], report: Callable[[int, int, float], None]
    ) -> None:
        """Compute what is missing. `report` is told tokens done, of how many, and seconds, after each shard."""
        missing = [c for c in conversations if c not in self]
        total, done, started = sum(len(c.ids) for c in missing), 0, time.monotonic()
        batch: list[Conversation] = []
        for place, conversation in enumerate(missing):
            batch.append(conversation)
            size = sum(len(c.ids) for c in batch)
            if size >= SHARD_TOKENS or place == len(missing) - 1:
                self._write(target, batch)
                done += size
                batch = []
                report(done, total, time.monotonic() - started)

    def _write(self, target: Target, batch: Sequence[Conversation]) -> None:
        seen = [observe(target, c.ids, c.start) for c in batch]
        name = f"{batch[0].key}.safetensors"
        tensors = {
            "taps": torch.cat([f.taps for f in seen]).to(torch.bfloat16),
            "normed": torch.cat([f.normed for f in seen]).to(torch.bfloat16),
            "best": torch.cat([f.best for f in seen]).int(),
            "top": torch.cat([f.top for f in seen]),
            "sum": torch.cat([f.sum for f in seen]),
        }
        part = self.path / f".{name}.part"
        save_file({key: value.cpu().contiguous() for key, value in tensors.items()}, part)
        os.replace(part, self.path / name)
        places: list[tuple[str, int, int, int, int]] = []
        row = reply = 0
        for conversation, features in zip(batch, seen, strict=True):
            rows, replies = features.taps.shape[0], features.normed.shape[0]
            places.append((conversation.key, row, rows, reply, replies))
            self._where[conversation.key] = (name, row, rows, reply, replies)
            row, reply = row + rows, reply + replies
        with (self.path / INDEX).open("a") as file:
            file.write(json.dumps({"shard": name, "conversations": places}) + "\n")

    def read(self, conversation: Conversation) -> Features:
        """The features of a conversation that is in the store."""
        shard, row, rows, reply, replies = self._where[conversation.key]
        if shard not in self._open:
            self._open[shard] = safe_open(str(self.path / shard), framework="pt")
        file = self._open[shard]
        said = slice(reply, reply + replies)
        return Features(
            torch.tensor(conversation.ids, dtype=torch.int64),
            conversation.start,
            file.get_slice("taps")[row : row + rows],
            file.get_slice("normed")[said],
            file.get_slice("best")[said].long(),
            file.get_slice("top")[said],
            file.get_slice("sum")[said],
        )
