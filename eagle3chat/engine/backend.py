"""The tensor border: what a backend does for one conversation, and all that it says in a round.

Letters used in every engine module:

    K   drafted tokens in a round (the chain)      V   target vocabulary
    Vd  draft vocabulary                           H   draft width
    n   committed tokens: prompt and reply so far, the anchor last

Batch is 1, without an axis. Positions are absolute, from 0 for the first token of the prompt: the token
at position t is chosen with the noise of t. Knows no text and no loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar

from eagle3chat.engine.quick import quick
from eagle3chat.engine.sampling import Sampling


class Fate(Enum):
    """What becomes of a proposal, and of its chain."""

    DROPPED = "it is not verified, and ends the chain"
    LAST = "it is verified, and ends the chain"
    MORE = "it is verified, and the next one is asked for"


Worth = Callable[[float], Fate]
"""Asked with the draft's probability of each proposal in turn."""


class Draft(Protocol):
    """Tokens on their way: a handle to device work that was launched and not waited for."""

    @property
    def chain(self) -> int:
        """K: how many tokens were drafted; less than asked for when the draft cannot start."""


@quick
@dataclass(frozen=True, slots=True)
class Verdict:
    """All that crosses from the device in a round. Row i judges `drafted[i]`; row K is the bonus row.

    Probabilities are of the distribution sampled from: after penalties, temperature and filters; greedy: at
    temperature 1. The draft's are after penalties (on its own logits) and temperature.
    """

    drafted: tuple[int, ...]  # [K] proposed target ids
    draft_p: tuple[float, ...]  # [K] the draft's probability of each, by softmax over its own vocabulary
    target_p: tuple[float, ...]  # [K] the target's probability of each
    chosen: tuple[int, ...]  # [K+1] the choice rule at every row
    chosen_p: tuple[float, ...]  # [K+1]
    runners_up: tuple[tuple[tuple[int, float], ...], ...]  # [K+1][<=4] (id, probability), most probable first
    margin: tuple[float, ...]  # [K+1] by how much the chosen token won: chosen minus second of logits + noise
    draft_seconds: float | None = None
    verify_seconds: float | None = None


D = TypeVar("D", bound=Draft)
"""A backend's own kind of draft: what its `draft` gives, its `verify` takes."""


class Backend(Protocol[D]):
    """Tensor work for one conversation. Build it, call it and free it on one thread.

    Between calls the target cache holds every committed token except the anchor (n - 1 rows), and the
    draft cache, once the next `draft` has caught up, n - 1 rows: row i pairs feature i with token i + 1.

    For the penalties of a row the tokens of the last `prefill` are the prompt; the reply is all that was committed
    since and what is drafted before the row.
    """

    @property
    def capacity(self) -> int:
        """Positions that both caches can hold; n may reach capacity + 1."""

    @property
    def max_chain(self) -> int:
        """The longest chain; 0 when there is no draft."""

    def prefill(self, tokens: Sequence[int], keep: int) -> Iterator[int]:
        """Cache tokens[:-1]; tokens[-1] becomes the anchor.

        The first `keep` rows of both caches are reused: the caller has checked that tokens[:keep + 1]
        equal the tokens they came from. keep <= max(0, len(tokens) - 2). Where a sliding window has passed
        over rows that the kept context needs, the backend keeps fewer (as a rule none), never wrong ones.

        Yields:
            Tokens cached so far, after each chunk; before the first one only when fewer than `keep` were
            kept: how many, so a number below `keep` says what was truly reused. Whoever stops listening
            leaves caches that hold exactly that many rows.
        """

    @property
    def early(self) -> bool:
        """Whether `draft` knows its probabilities at once, without waiting for a device, and asks `worth`."""

    def draft(self, chain: int, sampling: Sampling, worth: Worth | None = None) -> D:
        """Launch K <= chain proposals for positions n .. n+K-1. Does not wait.

        Args:
            worth: Ends the chain where it says so; not asked unless `early`.
        """

    def verify(self, draft: D, sampling: Sampling) -> Verdict:
        """One target pass over the anchor and the drafted tokens (K + 1 rows, n + K <= capacity)."""

    def commit(self, accepted: int, anchor: int) -> None:
        """Keep the anchor's row and those of drafted[:accepted]; drop the rest; `anchor` is the new one."""

    def close(self) -> None:
        """Free device memory. Calling it again does nothing."""
