"""What a pair can be asked about itself: whether rows keep their numbers, and whether the taps are the right ones.

Everything goes through the four verbs, so that each backend answers for itself. Two things break speculation without
an error: a target whose pass of several rows says something else than passes of one, and a draft that is fed from other
boundaries than it was trained on. The first changes the text, the second halves the speed. Knows no tensors.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from eagle3chat.engine.backend import Backend, Verdict
from eagle3chat.engine.sampling import Sampling

TEXT = "The river rose all night, and in the morning the bridge was gone."
TOKENS = 8  # of it that are cached before the rows are compared
ROWS = 4
PROMPTS = (
    "Why does it rain more in the mountains?",
    "Write a Python function that counts the words of a text.",
    "Tell me a short story about a lighthouse.",
)
REPLY = 24  # tokens of the reply to each
GREEDY = Sampling()

# By how much rows may differ where arithmetic is exact up to its last bits, and where inputs are rounded to few bits.
NEAR, NEAR_ROUNDED = 1e-3, 0.15  # of a probability
TIE, TIE_ROUNDED = 0.01, 1.0  # of logits: choices that were won by less may fall either way
CLEARLY = 0.03  # more acceptance than this, and more than chance would give


@dataclass(frozen=True, slots=True)
class Rows:
    """A pass of several rows beside as many passes of one, over the same tokens."""

    count: int
    agreed: int  # rows that chose the same token
    difference: float  # the largest, of a probability that one of them names
    exact: bool  # computed in float32
    upset: int  # rows that chose another token although it was no near tie

    @property
    def warning(self) -> str:
        """What is wrong and what to do; empty: rounding explains the difference."""
        if self.upset == 0 and self.difference <= (NEAR if self.exact else NEAR_ROUNDED):
            return ""
        return f"Speculation may change the text: {self}. Use --chain 0, or another --dtype, --device or --backend."

    def __str__(self) -> str:
        return (
            f"a pass of {self.count} rows beside {self.count} passes of one: probabilities at most"
            f" {self.difference:.1e} apart, the same choice in {self.agreed} of {self.count}"
        )


@dataclass(frozen=True, slots=True)
class Hits:
    """Which first proposals of a draft were right when it was fed from certain boundaries."""

    taps: tuple[int, ...]
    right: tuple[bool, ...]  # of each judged position

    @property
    def share(self) -> float:
        """Acceptance at the first place of the chain."""
        return sum(self.right) / len(self.right) if self.right else 0.0

    def beats(self, other: Hits) -> bool:
        """Whether it is clearly better over the same positions: by McNemar's test at about two deviations."""
        pairs = list(zip(self.right, other.right, strict=False))
        gained = sum(mine and not theirs for mine, theirs in pairs)
        lost = sum(theirs and not mine for mine, theirs in pairs)
        return gained - lost > max(2.0 * math.sqrt(gained + lost), CLEARLY * len(pairs))


@dataclass(frozen=True, slots=True)
class Taps:
    """A draft fed from the boundaries that its bundle names, and from others."""

    named: Hits
    others: tuple[Hits, ...]

    @property
    def better(self) -> Hits | None:
        """The best of the others, if it is clearly better."""
        better = [hits for hits in self.others if hits.beats(self.named)]
        return max(better, key=lambda hits: hits.share, default=None)

    @property
    def warning(self) -> str:
        """What is wrong and what to do; empty: no other taps are clearly better."""
        if self.better is None:
            return ""
        taps = ",".join(map(str, self.better.taps))
        return f"The draft was made for other taps, it seems: {self}. Export the bundle again with --taps {taps}."

    def __str__(self) -> str:
        shares = [f"{hits.share:.2f} from {','.join(map(str, hits.taps))}" for hits in (self.named, *self.others)]
        return f"acceptance at the first place over {len(self.named.right)} tokens by taps: {'; '.join(shares)}"


def compare_rows(
    backend: Backend[Any], tokens: Sequence[int], *, exact: bool, seconds: float = math.inf
) -> Rows | None:
    """Judge the same tokens in one pass and one by one.

    Args:
        tokens: A text; its first tokens are cached, and what the draft says after them is judged.
        exact: The backend computes in float32.
        seconds: Give up early when all would take longer, by the time of the first half.

    Returns:
        None: there is no draft, the context has no room, or it would have taken too long.
    """
    rows = min(ROWS, backend.max_chain + 1)
    tokens = tokens[: min(TOKENS, backend.capacity - rows)]
    if rows < 2 or len(tokens) < 2:
        return None
    started = time.perf_counter()
    _cache(backend, tokens)
    together = backend.verify(backend.draft(rows - 1, GREEDY), GREEDY)
    if (time.perf_counter() - started) * (1 + rows / 2) > seconds:
        return None
    _cache(backend, tokens)
    agreed = upset = 0
    difference = 0.0
    tie = TIE if exact else TIE_ROUNDED
    for row, chosen in enumerate(together.chosen):
        alone = backend.verify(backend.draft(0, GREEDY), GREEDY)
        agreed += chosen == alone.chosen[0]
        upset += chosen != alone.chosen[0] and alone.margin[0] > tie
        difference = max(difference, _apart(together, row, alone))
        if row < len(together.drafted):
            backend.commit(0, together.drafted[row])
    return Rows(len(together.chosen), agreed, difference, exact, upset)


def first_hits(backend: Backend[Any], prompts: Sequence[Sequence[int]], stops: Collection[int]) -> tuple[bool, ...]:
    """Whether the draft's first proposal was right, at each token of the target's own greedy replies.

    The replies do not depend on the draft, so that the answers for different taps go together.
    """
    right: list[bool] = []
    for prompt in prompts if backend.max_chain else ():
        prompt = prompt[: backend.capacity - 1]
        if len(prompt) < 2:
            continue
        _cache(backend, prompt)
        for _ in range(min(REPLY, backend.capacity - len(prompt))):
            verdict = backend.verify(backend.draft(1, GREEDY), GREEDY)
            right.append(verdict.drafted == verdict.chosen[:1])
            backend.commit(0, verdict.chosen[0])
            if verdict.chosen[0] in stops:
                break
    return tuple(right)


def shifted(taps: tuple[int, ...], boundaries: int) -> list[tuple[int, ...]]:
    """The taps one boundary down and one up, as far as the target has them (0 .. `boundaries`)."""
    moved = [tuple(tap + step for tap in taps) for step in (-1, 1)]
    return [taps for taps in moved if min(taps) >= 0 and max(taps) <= boundaries]


def _cache(backend: Backend[Any], tokens: Sequence[int]) -> None:
    for _ in backend.prefill(tokens, 0):
        pass


def _apart(together: Verdict, row: int, alone: Verdict) -> float:
    """The largest difference of a probability between a row and the same row alone.

    A token that only one of them names has at most the least probability that the other one names.
    """
    ours, theirs = dict(together.runners_up[row]), dict(alone.runners_up[0])
    least_ours, least_theirs = min(ours.values(), default=0.0), min(theirs.values(), default=0.0)
    apart = [abs(p - theirs[token]) if token in theirs else p - least_theirs for token, p in ours.items()]
    apart += [p - least_ours for token, p in theirs.items() if token not in ours]
    # Not a number is as far apart as can be.
    return max((1.0 if math.isnan(x) else x for x in apart), default=1.0)
