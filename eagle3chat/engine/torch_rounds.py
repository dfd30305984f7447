"""Drafting and verifying as work on memory that stays, so that each is one launch: what torch_graphs.py records.

The device keeps where it is: rows of both caches, confirmed rows that wait for the draft, the anchor. A verification
judges its rows, finds how many proposals agree, and moves on by itself; the host reads one table a round, comes to the
same numbers, and corrects the device only where a stop or a limit cut the round (`commit`). Shapes are fixed: a chain
has its own recording, and confirmed rows always go to the draft ROWS at a time, of which only the first `count` are
meant; what the others write is written over before it is read. Where the GPU's attention kernel does not serve, the
plain one looks at a number of cache rows that is a power of two, and there is a recording for each of these.

Some rounds are not for this and are left to torch_backend.py: penalties, chains beyond ROWS, the last positions of a
context, the first failure to record. `leave` hands over. Knows no text and no loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec

import torch
from torch import Tensor

from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.torch_cache import KvCache
from eagle3chat.engine.torch_choice import CHOSEN, judge_plainly
from eagle3chat.engine.torch_device import Mark, upload
from eagle3chat.engine.torch_draft import DraftHead
from eagle3chat.engine.torch_graphs import Graphs, Work
from eagle3chat.engine.torch_noise import Noise, signed_keys
from eagle3chat.engine.torch_proposal import Pending, TorchDraft, propose
from eagle3chat.engine.torch_span import FOLD_ROWS, Place
from eagle3chat.engine.torch_state import State
from eagle3chat.engine.torch_target import Target

ROWS = FOLD_ROWS
LEAST_BOUND = 256


class Rounds:
    """One conversation's rounds.

    Args:
        head: None: there is no draft.
        capacity: Positions.
        graphs: On; see pick_graphs.
        fused: Whether the GPU's attention kernel serves; None: on CUDA with triton.
    """

    def __init__(
        self,
        target: Target,
        head: DraftHead | None,
        capacity: int,
        noise: Noise,
        graphs: Graphs,
        fused: bool | None = None,
    ) -> None:
        self.target, self.head, self.capacity, self.noise, self.graphs = target, head, capacity, noise, graphs
        device = target.precision.device
        self.fused = device.type == "cuda" and find_spec("triton") is not None if fused is None else fused
        self.state = State(target, ROWS, 0 if head is None else head.config.tap_width)
        self.windowed = next((part for part in target.cache.parts if part.window), None)
        self.caches: tuple[KvCache, ...] = (*target.cache.parts, *(() if head is None else head.cache.parts))
        self.live = False  # the device's state is that of the host
        self.ids: list[int] = []  # tokens of the confirmed rows that wait on the device
        self.noised: tuple[int, int, int] = (0, 0, 0)  # seed, first position and rows of the noise on the device
        self.keyed: tuple[int, ...] = ()  # what `said` was last sent
        if not self.fused:
            for cache in self.caches:
                cache.blank()

    @staticmethod
    def obstacle(target: Target) -> str:
        """Why a target's passes cannot be fixed; empty: they can."""
        mixtures = [part for layer in target.layers for part in layer.mixtures]
        return "" if all(mixture.gathers for mixture in mixtures) else "the host groups rows by expert"

    # Hand-over

    def enter(self, anchor: int, pending: Pending) -> None:
        """Take over from the host: its rows and anchor, and the confirmed rows that wait."""
        if self.live:
            return
        if pending.tokens:
            taps, self.ids = pending.take()
            self.state.taps[: len(self.ids)].copy_(taps)
            self.state.ids[: len(self.ids)].copy_(upload(self.ids, torch.int64, self.state.ids.device))
        self._tell(anchor)
        self.live = True

    def leave(self, pending: Pending) -> None:
        """Hand over to the host: the confirmed rows that wait, copied."""
        if self.live and self.ids:
            pending.add(self.state.taps[: len(self.ids)].clone(), self.ids)
        self.live, self.ids = False, []

    def _tell(self, anchor: int) -> None:
        head_rows = 0 if self.head is None else self.head.cache.rows
        self.state.counters.send([self.target.cache.rows, head_rows, len(self.ids), anchor])
        self.state.tokens[:1].copy_(self.state.anchor)

    def probe(self) -> None:
        """Record a plain round, greedy, to learn at opening whether recordings hold here."""
        pending = Pending()
        self.enter(0, pending)
        self.target.cache.prepare(1)
        bounds = tuple(self._bound(part, 1) for part in self.target.cache.parts)
        self._verify_work(1, bounds, False, Sampling())
        self.leave(pending)

    # Verbs

    def draft(self, chain: int, sampling: Sampling, anchor: int, pending: Pending) -> TorchDraft | None:
        """Launch proposals, as Backend.draft with a chain that fits; None: not for this."""
        rows = self.target.cache.rows + 1
        if sampling.penalises or chain >= ROWS or len(pending.tokens) > ROWS:
            return None
        self.enter(anchor, pending)
        if chain == 0 or not self.ids:
            now = Mark(self.target.precision.device)
            return TorchDraft(self.state.tokens[:1], self.state.p[:1], None, sampling.seed, now, now)
        self._say(sampling, rows, chain + 1)
        work = self._draft_work(chain, sampling)
        if work is None:
            return None
        started = Mark(self.target.precision.device)
        work()
        self.head.cache.advance(len(self.ids))
        self.ids = []
        if sampling.temperature:
            self.noised = (sampling.seed, rows, chain + 1)
        ended = Mark(self.target.precision.device)
        return TorchDraft(
            self.state.tokens[: chain + 1], self.state.p[: chain + 1], None, sampling.seed, started, ended
        )

    def _draft_work(self, chain: int, sampling: Sampling) -> Work | None:
        """What takes in the waiting rows and drafts; None: not for this."""
        if self.head is None or self.head.cache.rows + ROWS > self.capacity:
            return None
        # Rows written: ROWS at most after the counted ones, or those of the chain.
        bound = self._bound(self.head.cache, max(ROWS, len(self.ids) + chain))
        key = ("draft", chain, bound, _shape(sampling) if chain else None)
        return self._recorded(key, partial(self._draft, chain, sampling, bound))

    def verify(
        self, draft: TorchDraft, sampling: Sampling, anchor: int, pending: Pending
    ) -> tuple[list[list[float]], Mark, Mark] | None:
        """One pass over the drafted tokens: the rows of the table, and the device's times; None: not for this."""
        rows, cache = draft.chain + 1, self.target.cache
        if sampling.penalises or rows > ROWS or len(pending.tokens) > ROWS:
            return None
        self.enter(anchor, pending)
        if len(self.ids) + rows > ROWS and not self._catch_up(sampling):
            return None
        cache.prepare(rows)
        fresh = bool(sampling.temperature) and not self._has_noise(sampling.seed, cache.rows + 1, rows)
        self._say(sampling if fresh else Sampling(), cache.rows + 1, rows)  # a recording runs the work at once
        bounds = tuple(self._bound(part, rows) for part in cache.parts)
        work = self._verify_work(rows, bounds, fresh, sampling)
        if work is None:
            return None
        if draft.tokens.data_ptr() != self.state.tokens.data_ptr():
            self.state.tokens[:rows].copy_(draft.tokens)
            self.state.p[:rows].copy_(draft.p)
        started = Mark(self.target.precision.device)
        work()
        ended = Mark(self.target.precision.device)
        self.state.table.launch(rows)
        if fresh:
            self.noised = (sampling.seed, cache.rows + 1, rows)
        return self.state.table.read(rows), started, ended

    def _verify_work(self, rows: int, bounds: tuple[int, ...], fresh: bool, sampling: Sampling) -> Work | None:
        key = ("verify", rows, bounds, fresh, _shape(sampling))
        return self._recorded(key, partial(self._verify, rows, bounds, fresh, sampling))

    def commit(self, accepted: int, anchor: int, drafted: tuple[int, ...], chosen: tuple[int, ...]) -> None:
        """Keep drafted[:accepted] and the anchor: what the device did already, unless the round was cut.

        Args:
            chosen: Of the round's verdict, [K+1].
        """
        agreed = next((i for i, token in enumerate(drafted) if chosen[i] != token), len(drafted))
        self.target.cache.advance(accepted + 1)
        if self.head is not None:
            self.ids = [*self.ids, *drafted[:accepted], anchor]
        if (accepted, anchor) != (agreed, chosen[agreed]):
            if self.ids:
                self.state.ids[len(self.ids) - 1 : len(self.ids)].fill_(anchor)
            self._tell(anchor)

    def _catch_up(self, sampling: Sampling) -> bool:
        """Take the waiting rows into the draft's cache."""
        work = self._draft_work(0, sampling)
        if work is None:
            return False
        work()
        self.head.cache.advance(len(self.ids))
        self.ids = []
        return True

    # What the host says

    def _say(self, sampling: Sampling, position: int, rows: int) -> None:
        """Send the sliding buffer's place and the keys of the noise, where they are others than before."""
        shift = 0 if self.windowed is None else self.windowed.first
        words = [shift]
        if sampling.temperature:
            words += [word for key in signed_keys(sampling.seed, range(position, position + rows)) for word in key]
        if tuple(words) != self.keyed[: len(words)]:
            self.state.said.send(words)
            self.keyed = tuple(words)

    def _has_noise(self, seed: int, position: int, rows: int) -> bool:
        return self.noised[:2] == (seed, position) and rows <= self.noised[2]

    # What is recorded

    def _recorded(self, key: tuple[object, ...], work: Callable[[], None]) -> Work | None:
        addresses = tuple(cache.moves for cache in self.caches)
        return self.graphs.get(key, addresses, work, self.state.changing)

    def _bound(self, cache: KvCache, rows: int) -> int:
        """Rows of a buffer that the plain attention looks at; 0: the kernel knows itself."""
        if self.fused:
            return 0
        slots = cache.data.shape[2]
        needed = max(cache.rows - cache.first + rows, LEAST_BOUND)
        return slots if cache.window else min(slots, 1 << (needed - 1).bit_length())

    def _draft(self, chain: int, sampling: Sampling, bound: int) -> None:
        s, head = self.state, self.head
        place = Place(s.draft_rows.clone(), s.zero, bound, self.fused)
        out = head(s.ids, head.fuse(s.taps), place)
        last = (s.count - 1).clamp_(min=0)
        token = s.ids.index_select(0, last)
        place = place + s.count
        s.draft_rows.add_(s.count)
        s.count.zero_()
        s.tokens[:1].copy_(token)
        if chain == 0:
            return
        noise = self._noise(chain + 1) if sampling.temperature else None
        tokens, p = propose(head, token, out.index_select(0, last), chain, sampling, noise, None, place=place)
        s.tokens[: chain + 1].copy_(tokens)
        s.p[: chain + 1].copy_(p)

    def _noise(self, rows: int) -> Tensor:
        """The noise of the keys that the host sent, kept."""
        return self.state.noise[:rows].copy_(self.noise.of(self.state.keys[:rows].int()))

    def _verify(self, rows: int, bounds: tuple[int, ...], fresh: bool, sampling: Sampling) -> None:
        s, target = self.state, self.target
        tokens = s.tokens[:rows]
        start = s.target_rows.clone()
        shifts = [s.shift if part.window else s.zero for part in target.cache.parts]
        places = [Place(start, shift, bound, self.fused) for shift, bound in zip(shifts, bounds, strict=True)]
        x, taps = target.at(tokens, places)
        noise = self._noise(rows) if fresh else s.noise[:rows] if sampling.temperature else None
        drafted = tokens.roll(-1)
        said = judge_plainly(target.logits(x), noise, drafted, sampling, fixed=True)
        s.table.data[:rows].copy_(torch.cat((said, drafted[:, None].float(), s.p[:rows, None]), -1))
        chosen = said[:, CHOSEN].long()
        agreed = (chosen[:-1] == drafted[:-1]).long().cumprod(0).sum(0, keepdim=True)
        s.target_rows.add_(agreed + 1)
        s.tokens[:1].copy_(chosen.index_select(0, agreed))
        if self.head is not None:
            at = s.count + s.offsets[:rows]
            s.ids.index_copy_(0, at, chosen)
            s.taps.index_copy_(0, at, taps)
            s.count.add_(agreed + 1)


def _shape(sampling: Sampling) -> Sampling:
    """What recorded work has of a sampling: all but the seed."""
    return replace(sampling, seed=0)
