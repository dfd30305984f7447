"""A backend without tensors: two small tables in place of networks, in plain Python.

It does everything that a real backend does (caches, drafting, verification, rollback), so the loop, the
statistics, the worker and the screen can be tested and shown without a model. `follow_text` makes a
Markov chain of a text, and `ScriptedBackend` decodes any pair of tables. Knows no words.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from eagle3chat.engine.backend import Fate, Verdict, Worth
from eagle3chat.engine.sampling import Before, Sampling, filtered, gumbel_row, penalised, softmax

Table = Callable[[Sequence[int]], Sequence[float]]
"""The tokens before a position -> logits of the token there."""

RUNNERS_UP = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """A target distribution after temperature and filters."""

    scaled: tuple[float, ...]  # [V] logits; -inf: dropped
    p: tuple[float, ...]  # [V]
    top: tuple[tuple[int, float], ...]  # the most probable tokens


def shape_of(logits: tuple[float, ...], sampling: Sampling) -> Shape:
    """The distribution that a row of logits [V] after penalties stands for."""
    scaled = filtered(logits, sampling)  # without the tokens before: penalties are in the logits
    p = softmax(scaled)
    order = sorted(range(len(p)), key=lambda i: -p[i])[:RUNNERS_UP]
    return Shape(tuple(scaled), tuple(p), tuple((i, p[i]) for i in order if p[i] > 0.0))


@dataclass(frozen=True, slots=True)
class ScriptedDraft:
    """Proposals: ids and their draft probabilities."""

    drafted: tuple[int, ...]  # [K]
    draft_p: tuple[float, ...]  # [K]

    @property
    def chain(self) -> int:
        """K."""
        return len(self.drafted)


class ScriptedBackend:
    """Decodes with tables.

    Args:
        target: Logits [V] from the tokens before.
        draft: Logits [Vd] from the tokens before; None: no draft.
        draft_ids: [Vd] target id of each draft id.
        vocab_size: V.
        capacity: Positions.
        max_chain: Longest chain.
        seconds: Least wall time of a round, so that a screen has something to show.
        chunk: Tokens a prefill step caches.
        memory: How many positions' noise is kept.
    """

    def __init__(
        self,
        target: Table,
        draft: Table | None,
        draft_ids: Sequence[int],
        *,
        vocab_size: int,
        capacity: int = 512,
        max_chain: int = 8,
        seconds: float = 0.0,
        chunk: int = 64,
        memory: int = 64,
    ) -> None:
        self._target = target
        self._draft = draft
        self._draft_ids = tuple(draft_ids)
        self._vocab_size = vocab_size
        self._capacity = capacity
        self._max_chain = max_chain if draft else 0
        self._seconds = seconds
        self._chunk = chunk
        self._cached: list[int] = []  # tokens in the caches
        self._rows: list[int] = []  # tokens of the last verification
        self._anchor: int | None = None
        self._prompt = 0  # tokens of the prompt
        self._noise = lru_cache(memory)(gumbel_row)  # draft and verify ask for the same rows
        self._shape = lru_cache(64)(shape_of)

    @property
    def capacity(self) -> int:
        """Positions."""
        return self._capacity

    @property
    def max_chain(self) -> int:
        """Longest chain; 0 without a draft."""
        return self._max_chain

    @property
    def cached(self) -> tuple[int, ...]:
        """The tokens that the caches hold, for tests."""
        return tuple(self._cached)

    def prefill(self, tokens: Sequence[int], keep: int) -> Iterator[int]:
        """Cache tokens[:-1], see Backend.prefill."""
        assert 0 <= keep <= max(0, len(tokens) - 2)
        assert list(tokens[:keep]) == self._cached[:keep], "kept rows stand for other tokens"
        del self._cached[keep:]
        self._anchor, self._prompt = None, len(tokens)
        while len(self._cached) < len(tokens) - 1:
            start = len(self._cached)
            self._cached.extend(tokens[start : min(start + self._chunk, len(tokens) - 1)])
            yield len(self._cached)
        self._anchor = tokens[-1]

    @property
    def early(self) -> bool:
        """See Backend."""
        return True

    def draft(self, chain: int, sampling: Sampling, worth: Worth | None = None) -> ScriptedDraft:
        """K proposals; none when the prompt has one token, as a head without a feature."""
        assert self._anchor is not None and 0 <= chain <= self._max_chain
        if self._draft is None or not self._cached:
            return ScriptedDraft((), ())
        context = self._cached  # grown in place and cut back: copying it would cost the length of the text
        start = len(context)
        context.append(self._anchor)
        drafted: list[int] = []
        probabilities: list[float] = []
        for _ in range(chain):
            logits = self._penalised(self._draft(context), context, sampling, self._draft_ids)
            p = softmax([x / (sampling.temperature or 1.0) for x in logits])
            best = self._propose(p, len(context), sampling)
            fate = Fate.MORE if worth is None else worth(p[best])
            if fate is Fate.DROPPED:
                break
            drafted.append(self._draft_ids[best])
            probabilities.append(p[best])
            context.append(drafted[-1])
            if fate is Fate.LAST:
                break
        del context[start:]
        return ScriptedDraft(tuple(drafted), tuple(probabilities))

    def _penalised(
        self, logits: Sequence[float], context: Sequence[int], sampling: Sampling, ids: Sequence[int] | None = None
    ) -> Sequence[float]:
        """The logits after penalties; `ids` as `penalised` takes them."""
        if not sampling.penalises:
            return logits
        return penalised(logits, sampling, Before(context[: self._prompt], context[self._prompt :]), ids)

    def _propose(self, p: Sequence[float], position: int, sampling: Sampling) -> int:
        """argmax(log q / sharpness + noise), the noise of the mapped target ids; greedy: argmax."""
        if sampling.temperature == 0.0:
            return max(range(len(p)), key=p.__getitem__)
        noise = self._noise(sampling.seed, position, self._vocab_size)

        def score(i: int) -> float:
            log_q = math.log(p[i]) if p[i] > 0.0 else -math.inf
            return log_q / sampling.sharpness + noise[self._draft_ids[i]]

        return max(range(len(p)), key=score)

    def verify(self, draft: ScriptedDraft, sampling: Sampling) -> Verdict:
        """Judge the anchor's row and each drafted token's."""
        assert self._anchor is not None
        started = time.perf_counter()
        self._rows = [self._anchor, *draft.drafted]
        context, start = self._cached, len(self._cached)
        assert start + len(self._rows) <= self._capacity, "a row past the caches"
        shapes: list[Shape] = []
        chosen: list[int] = []
        margins: list[float] = []
        for token in self._rows:
            context.append(token)
            logits = self._penalised(self._target(context), context, sampling)
            shapes.append(self._shape(tuple(logits), sampling))
            best, margin = self._choose(shapes[-1], len(context), sampling)
            chosen.append(best)
            margins.append(margin)
        del context[start:]
        time.sleep(max(0.0, self._seconds - (time.perf_counter() - started)))
        return Verdict(
            drafted=draft.drafted,
            draft_p=draft.draft_p,
            target_p=tuple(shape.p[token] for shape, token in zip(shapes, draft.drafted, strict=False)),
            chosen=tuple(chosen),
            chosen_p=tuple(shape.p[token] for shape, token in zip(shapes, chosen, strict=True)),
            runners_up=tuple(shape.top for shape in shapes),
            margin=tuple(margins),
        )

    def _choose(self, shape: Shape, position: int, sampling: Sampling) -> tuple[int, float]:
        """The choice rule, and by how much it was won."""
        values: Sequence[float] = shape.scaled
        if sampling.temperature > 0.0:
            noise = self._noise(sampling.seed, position, self._vocab_size)
            values = [x + g for x, g in zip(values, noise, strict=True)]
        best = max(values)
        chosen = values.index(best)
        second = max((x for i, x in enumerate(values) if i != chosen), default=-math.inf)
        return chosen, best - second

    def commit(self, accepted: int, anchor: int) -> None:
        """Keep the first accepted + 1 rows."""
        self._cached.extend(self._rows[: accepted + 1])
        self._rows = []
        self._anchor = anchor

    def close(self) -> None:
        """Nothing to free."""


def follow_text(tokens: Sequence[int], starts: Sequence[int], weak: Sequence[int], vocab_size: int) -> Table:
    """A Markov chain over a text: after the last four, three, two or one tokens, what followed them there.

    Args:
        tokens: The text; followed as a ring.
        starts: What may come where that was never seen.
        weak: Tokens that say nothing alone, such as line breaks.
        vocab_size: V.
    """
    followers: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    ring = [*tokens, *tokens[:4]]
    for size in range(1, 5):
        for i in range(len(ring) - size):
            context = tuple(ring[i : i + size])
            if size > 1 or context[0] not in weak:
                followers[context][ring[i + size]] += 1
    openings = Counter(starts)

    def logits(context: Sequence[int]) -> Sequence[float]:
        # The long context follows the text, the short one lets it wander: something of both.
        sizes = (4, 3, 2, 1) if len(context) % 7 else (3, 2, 1)
        seen = next((f for s in sizes if (f := followers.get(tuple(context[-s:])))), openings)
        row = [-12.0] * vocab_size
        for token, count in seen.items():
            row[token] = math.log(count)
        return row

    return logits


def blurred(table: Table, *, share: float, seed: int, draft_ids: Sequence[int]) -> Table:
    """A draft's view of a target table: its logits at `draft_ids`, wrong in about `share` of the contexts."""

    def logits(context: Sequence[int]) -> Sequence[float]:
        full = table(context)
        row = [full[i] for i in draft_ids]
        chance = random.Random(f"{seed} {tuple(context[-3:])}")
        if chance.random() < share:
            row[chance.randrange(len(row))] = max(row) + 1.0
        return row

    return logits
