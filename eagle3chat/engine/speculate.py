"""The speculative loop and the acceptance rule, written once. Token ids only.

One loop serves every chain: with K = 0 it is plain decoding. A round drafts, verifies, cuts at a stop or
a limit, commits, and only then is told, so whoever stops listening leaves caches that equal what was
said. Knows no tensors, no text and no clock but the wall's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from eagle3chat.engine.backend import Backend, D, Verdict, Worth
from eagle3chat.engine.quick import quick
from eagle3chat.engine.requests import Controls

Finish = Literal["stop", "length", "context"]
Cut = Callable[[tuple[int, ...]], tuple[int, bool]]
"""Offered ids -> (how many are kept, 1 or more; whether the last kept one ends the reply)."""


@quick
@dataclass(frozen=True, slots=True)
class Step:
    """One committed round."""

    index: int
    position: int  # of the first emitted token
    controls: Controls  # that it ran under
    verdict: Verdict
    accepted: int  # drafted tokens that were kept
    own: bool  # the target's own token was kept as well
    tokens: tuple[int, ...]  # emitted, 1..K+1
    finish: Finish | None  # set on the last step
    seconds: float
    drafting: float  # of them, until `draft` came back: on a device that is only the launching


def agreed(verdict: Verdict) -> int:
    """Leading drafted tokens that equal the target's choice: the acceptance rule at every temperature.

    Lossless because the choice at a position is a function of its logits, the seed and the position alone
    (Daliri, Musco, Suresh 2024, "Coupling without communication and drafter-invariant speculative decoding").
    """
    count = 0
    while count < len(verdict.drafted) and verdict.drafted[count] == verdict.chosen[count]:
        count += 1
    return count


def speculate(
    backend: Backend[D],
    committed: int,
    controls: Callable[[], Controls],
    cut: Cut,
    limit: int,
    worth: Callable[[], Worth | None] = lambda: None,
) -> Iterator[Step]:
    """Decode after `backend.prefill` until a stop, the limit or the end of the context.

    Args:
        backend: Prefilled.
        committed: n, tokens in the conversation, the anchor included; at most backend.capacity.
        controls: Asked at the start of every round.
        cut: Asked with the ids that a round would emit, before they are committed.
        limit: Most tokens to emit, 1 or more.
        worth: Asked after `controls`: what ends the round's chain early, see Backend.draft.

    Yields:
        A step a round; the last one has `finish` set.
    """
    assert 1 <= committed <= backend.capacity and limit >= 1
    index = emitted = 0
    finish: Finish | None = None
    while finish is None:
        now = controls()
        started = time.perf_counter()
        # Rows that do not fit in the caches, or could not be emitted, are not drafted.
        chain = min(now.chain, backend.max_chain, backend.capacity - committed, limit - emitted - 1)
        draft = backend.draft(chain, now.sampling, worth())
        drafting = time.perf_counter() - started
        verdict = backend.verify(draft, now.sampling)
        accepted = agreed(verdict)
        offered = (*verdict.drafted[:accepted], verdict.chosen[accepted])
        kept, ended = cut(offered)
        assert 1 <= kept <= len(offered)
        backend.commit(kept - 1, offered[kept - 1])
        position, committed, emitted = committed, committed + kept, emitted + kept
        if ended:
            finish = "stop"
        elif emitted == limit:
            finish = "length"
        elif committed > backend.capacity:
            finish = "context"
        seconds = time.perf_counter() - started
        own = kept == len(offered)
        yield Step(index, position, now, verdict, min(accepted, kept), own, offered[:kept], finish, seconds, drafting)
        index += 1
