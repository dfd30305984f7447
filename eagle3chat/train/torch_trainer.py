"""The training loop: batches, gradients of their parts on several threads, updates, checkpoints, measurements.

Masters are float32; each update computes with a copy in the compute dtype. Batches follow from the seed and the
epoch, so a run that is taken up again sees what it would have seen. The learning rate follows the share of the run that
is done, of its updates or of its time. Knows no command line and no target.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from eagle3chat.train.conversations import Conversation
from eagle3chat.train.journal import Update
from eagle3chat.train.recipe import Recipe
from eagle3chat.train.torch_features import Features, Store
from eagle3chat.train.torch_head import HEAD, Head, join
from eagle3chat.train.torch_loss import SoftTargets, slopes
from eagle3chat.train.torch_rounding import Rounding
from eagle3chat.train.torch_weights_file import Learned

CHECKPOINT = "checkpoint.pt"
DAY = 86400.0


@dataclass(frozen=True, slots=True)
class Limit:
    """When a run ends: after so many updates, at a time (seconds since the epoch) or after seconds of its own.

    One of the three is not 0. The time in which a run was cut off is none of its seconds.
    """

    updates: int = 0
    until: float = 0.0
    seconds: float = 0.0


def batches(conversations: Sequence[Conversation], seed: int, epoch: int, size: int) -> Iterator[list[Conversation]]:
    """The conversations in the order of an epoch, by about `size` reply tokens."""
    order = [conversation for conversation in conversations for _ in range(conversation.times)]
    random.Random(f"{seed}-{epoch}").shuffle(order)
    batch: list[Conversation] = []
    for conversation in order:
        batch.append(conversation)
        if sum(len(c.reply) for c in batch) >= size:
            yield batch
            batch = []
    if batch:
        yield batch


class Trainer:
    """A draft that is being trained.

    Args:
        learned: Where it starts.
        head: Its arithmetic; the embedding's dtype is computed in.
        store: Has the features of `conversations`.
        workers: Parts that are computed at once, each on a thread of its own.
        directory: Of the checkpoint.
    """

    def __init__(
        self,
        learned: Learned,
        head: Head,
        targets: SoftTargets,
        store: Store,
        conversations: Sequence[Conversation],
        recipe: Recipe,
        limit: Limit,
        directory: Path,
        workers: int = 1,
    ) -> None:
        self.config, self.target_ids = learned.config, learned.target_ids
        self.head, self.targets, self.recipe, self.limit = head, targets, recipe, limit
        self._store, self._conversations, self._directory = store, tuple(conversations), directory
        device = head.embedding.device
        self.masters = {name: value.clone().to(device).requires_grad_() for name, value in learned.weights.items()}
        self._optimiser = torch.optim.AdamW(
            self.masters.values(), lr=recipe.learning_rate, betas=recipe.betas, weight_decay=0.0, fused=True
        )
        self.updates = self.epoch = self._place = 0
        self._rounding = Rounding(head.embedding.dtype)
        self._began, self._spent = time.time(), 0.0  # of this process, and what those before it took
        self._reading = threading.Lock()
        self._pool = ThreadPoolExecutor(workers)

    @property
    def learned(self) -> Learned:
        """What it has learned so far; shares memory."""
        return Learned(self.config, {n: w.detach() for n, w in self.masters.items()}, self.target_ids)

    @property
    def finished(self) -> Learned:
        """What it has learned, as it was computed with: after a last part in few bits, what these keep.

        Rounded again by an engine the weights stay as they are, and in more bits they are what was trained.
        """
        if not self.recipe.few_bits:
            return self.learned
        weights = Rounding(torch.float32)(self.learned.weights, self.updates)
        return Learned(self.config, weights, self.target_ids)

    @property
    def working(self) -> dict[str, Tensor]:
        """The weights in the dtype that is computed in, at the end of a run as few bits keep them."""
        masters = {name: value.detach() for name, value in self.masters.items()}
        if self.share < 1.0 - self.recipe.few_bits or not self.recipe.few_bits:
            return {name: value.to(self.head.embedding.dtype) for name, value in masters.items()}
        return self._rounding(masters, self.updates)

    @property
    def share(self) -> float:
        """How much of the run is done, 0..1."""
        if self.limit.updates:
            return min(1.0, self.updates / self.limit.updates)
        spent = self._spent + time.time() - self._began
        whole = self.limit.seconds or self._spent + self.limit.until - self._began
        return min(1.0, spent / whole) if whole > 0 else 1.0

    def run(self, told: Callable[[Update], None]) -> None:
        """Update until the limit is reached. `told` is called after each update and may take its time or raise."""
        while self.share < 1.0:
            batch = list(batches(self._conversations, self.recipe.seed, self.epoch, self.recipe.batch_tokens))
            while self._place < len(batch) and self.share < 1.0:
                update = self._update(batch[self._place])
                self._place += 1
                told(update)
            if self._place >= len(batch):
                self.epoch, self._place = self.epoch + 1, 0

    def _update(self, batch: Sequence[Conversation]) -> Update:
        started, share = time.monotonic(), self.share
        working = {name: value.requires_grad_() for name, value in self.working.items()}
        parts = list(self._parts(batch))
        tokens = sum(len(c.reply) for c in batch)
        losses, counts = torch.zeros(self.recipe.depth), torch.zeros(self.recipe.depth)
        for value in self.masters.values():
            value.grad = torch.zeros_like(value) if value.grad is None else value.grad.zero_()
        for part_losses, part_counts, gradients in self._pool.map(lambda part: self._gradients(working, part), parts):
            losses += part_losses.cpu()
            counts += part_counts.cpu()
            for name, gradient in gradients.items():
                self.masters[name].grad.add_(gradient, alpha=1.0 / tokens)
        length = torch.nn.utils.clip_grad_norm_(list(self.masters.values()), self.recipe.clip)
        rate = self.recipe.rate(share)
        self._optimiser.param_groups[0]["lr"] = rate
        self._optimiser.step()
        self.updates += 1
        means = tuple((losses / counts.clamp_min(1)).tolist())
        seconds = time.monotonic() - started
        return Update(self.updates, self.epoch, share, rate, means, float(length), tokens, seconds)

    def _parts(self, batch: Sequence[Conversation]) -> Iterator[list[Conversation]]:
        """A batch by about `part_tokens` reply tokens."""
        part: list[Conversation] = []
        for conversation in batch:
            part.append(conversation)
            if sum(len(c.reply) for c in part) >= self.recipe.part_tokens:
                yield part
                part = []
        if part:
            yield part

    def _features(self, conversations: Sequence[Conversation]) -> list[Features]:
        with self._reading:
            return [self._store.read(conversation) for conversation in conversations]

    def _gradients(
        self, working: Mapping[str, Tensor], conversations: Sequence[Conversation]
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Sums of losses and counts by step, and the gradients' sums."""
        part = join(self._features(conversations), self.recipe.depth, self.head.embedding.device)
        outs = self.head(working, part, self.recipe.depth)
        made = slopes([out.detach() for out in outs], working[HEAD].detach(), part, self.targets, self.recipe.weights)
        trunk = {name: value for name, value in working.items() if name != HEAD}
        gradients = torch.autograd.grad(outs, list(trunk.values()), made.outs)
        return made.losses, made.counts, {**dict(zip(trunk, gradients, strict=True)), HEAD: made.head}

    def save(self) -> None:
        """Write the checkpoint; an older one is replaced when the new one is whole."""
        part = self._directory / f".{CHECKPOINT}.part"
        state = {
            "weights": {name: value.detach() for name, value in self.masters.items()},
            "optimiser": self._optimiser.state_dict(),
            "target_ids": self.target_ids,
            "place": [self.updates, self.epoch, self._place],
            "spent": self._spent + time.time() - self._began,
            "until": self.limit.until,
        }
        torch.save(state, part)
        os.replace(part, self._directory / CHECKPOINT)

    def load(self) -> bool:
        """Go on from the checkpoint; False: there is none. A run up to a time of day keeps the day that it had."""
        file = self._directory / CHECKPOINT
        if not file.is_file():
            return False
        state = torch.load(file, map_location="cpu", weights_only=True)
        with torch.no_grad():
            for name, value in self.masters.items():
                value.copy_(state["weights"][name])
        self._optimiser.load_state_dict(state["optimiser"])
        self.updates, self.epoch, self._place = state["place"]
        self._began, self._spent = time.time(), state["spent"]
        if self.limit.until and state["until"] and (self.limit.until - state["until"]) % DAY == 0.0:
            self.limit = replace(self.limit, until=state["until"])
        return True

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()
