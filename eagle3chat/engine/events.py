"""What comes out of the engine: frozen values, one per thing that happened.

A reply is `Prefill`*, `Round`+, `Finished` (or `Failed` at any point). `Loading`* and `Ready` come
once, before the first reply. Concatenating `Round.text` over a reply, then `Finished.text`, gives the
reply's text. This module knows no tensors, no tokenizer and no screen.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Literal

from eagle3chat.engine.quick import quick

OwnKind = Literal["correction", "bonus", "plain"]
"""The target's own token: after a rejection, after all drafted were accepted, or with nothing drafted."""

FinishReason = Literal["stop", "length", "context", "cancelled"]


@dataclass(frozen=True, slots=True)
class Loading:
    """A step of opening the pair."""

    stage: str
    fraction: float | None  # 0..1 of the whole load; None: unknown


@dataclass(frozen=True, slots=True)
class Info:
    """What was opened: everything that the screen shows about the pair."""

    model: str  # name of the target
    draft: str  # name of the draft; empty: none
    family: str
    backend: str  # "torch", "mlx", "scripted"
    device: str
    dtype: str
    template: str
    capacity: int  # positions
    max_chain: int  # 0: speculation is unavailable
    default_chain: int
    unavailable: str  # why there is no speculation; empty: there is
    stops: tuple[str, ...]  # stop tokens and stop strings, as text
    load_seconds: float
    memory_bytes: int  # weights and caches
    checks: tuple[str, ...] = ()  # what the pair was asked about itself, and said
    warnings: tuple[str, ...] = ()  # what is wrong with it, and what to do
    fixed_chain: str = ""  # why the chain cannot be set, though there may be one; empty: it can
    adjusts: bool = True  # new controls act at the next round; otherwise at the next reply
    unknown: tuple[str, ...] = ()  # fields above whose value stands for "not known"
    pass_bytes: int = 0  # of weights that the target reads in a pass; 0: not known, or it depends on the tokens


@dataclass(frozen=True, slots=True)
class Ready:
    """The pair is open; the worker waits for a message."""

    info: Info


@dataclass(frozen=True, slots=True)
class Prefill:
    """Progress of the prompt: `done` of `total` tokens cached, `reused` of them from the turn before."""

    done: int
    total: int
    reused: int


@quick
@dataclass(frozen=True, slots=True)
class Token:
    """A token as it is shown. `text` is the token decoded alone: it may hold U+FFFD for part of a character."""

    id: int
    text: str
    draft_p: float | None  # the draft's probability; None: the draft did not propose it
    target_p: float | None  # the target's probability, of the distribution it sampled from

    def __reduce__(self) -> tuple[type[Token], tuple[object, ...]]:
        # A dataclass with slots looks its fields up by name both ways, and there are some seven tokens in a round.
        return Token, (self.id, self.text, self.draft_p, self.target_p)


@dataclass(frozen=True, slots=True)
class Burst:
    """Text that a server sent in one piece. What was drafted for it and what the target thought is not told."""

    tokens: int | None  # None: not told


@quick
@dataclass(frozen=True, slots=True)
class Round:
    """One round: draft, verify, commit. With `burst` it is a piece of a server's text instead: no token is known,
    `position` is 0 where the server does not tell it, and `chain` says nothing.

    Emitted are `drafted[:accepted]` and then `own`. `own` is None when a stop or a limit cut the round
    before the target's own token. With `own_kind` "correction" `drafted[accepted]` was rejected.
    """

    index: int  # in this reply, from 0
    position: int  # absolute position of the first emitted token
    chain: int  # tokens asked for, or found with `why`; len(drafted) may be less near the end of the context
    temperature: float
    drafted: tuple[Token, ...]  # [K]
    accepted: int  # 0..K
    own: Token | None
    own_kind: OwnKind | None
    considered: tuple[Token, ...]  # what else the target considered where `own` stands, most probable first
    text: str  # whole characters that became readable
    seconds: float  # wall time of the round
    draft_seconds: float | None = None  # only where measured without adding a wait
    verify_seconds: float | None = None
    why: str = ""  # the chain's length was found, not set: why this one
    burst: Burst | None = None

    def __reduce__(self) -> tuple[type[Round], tuple[object, ...]]:
        return Round, _values(self)

    @property
    def emitted(self) -> int:
        """Tokens that this round added to the reply, 1..K+1; 0 for a burst whose tokens nobody counted."""
        if self.burst is not None:
            return self.burst.tokens or 0
        return self.accepted + (self.own is not None)

    @property
    def tokens(self) -> tuple[Token, ...]:
        """The emitted tokens in order."""
        own = () if self.own is None else (self.own,)
        return self.drafted[: self.accepted] + own

    @property
    def rejected(self) -> Token | None:
        """The drafted token that the target disagreed with, if any."""
        return self.drafted[self.accepted] if self.own_kind == "correction" else None

    @property
    def unreached(self) -> tuple[Token, ...]:
        """Drafted tokens that were never judged."""
        return self.drafted[self.accepted + (self.own_kind == "correction") :]


_values = attrgetter(*(each.name for each in fields(Round)))


@dataclass(frozen=True, slots=True)
class Told:
    """What a server told of a reply; None: it did not. The counts of `Usage` stand for nothing then."""

    source: str = ""  # where the figures of speculation are from; empty: there are none
    shared: bool = False  # counters of the whole server: what it did for others meanwhile is in them
    prompt_tokens: int | None = None
    reused_tokens: int | None = None
    generated_tokens: int | None = None
    rounds: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    tau: float | None = None  # mean accepted + 1 a round
    accepted_at: tuple[int, ...] | None = None  # [K] rounds in which the draft at this place was accepted
    decode_seconds: float | None = None  # on the server's clock

    @property
    def conditional(self) -> tuple[float | None, ...]:
        """[K] accepted / judged at each place, where rounds and places are known and every round drafts all K."""
        if self.accepted_at is None or self.rounds is None:
            return ()
        judged = (self.rounds, *self.accepted_at)
        return tuple(a / r if r else None for a, r in zip(self.accepted_at, judged, strict=False))


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts and times of one reply. Tested drafts are accepted + rejected; unreached ones were never judged.

    With `told` a server decoded it: the counts are those that it told, and 0 where `told` has None.
    """

    prompt_tokens: int
    reused_tokens: int  # of the prompt, from the caches of the turn before
    generated_tokens: int  # the stop token included
    rounds: int
    accepted: int
    rejected: int
    unreached: int
    reached_at: tuple[int, ...]  # [max K] rounds in which the draft at this place was judged
    accepted_at: tuple[int, ...]  # [max K] rounds in which it was accepted
    drafted_at: tuple[int, ...]  # [max K] rounds in which one was drafted at this place
    prefill_seconds: float
    decode_seconds: float
    first_token_seconds: float  # from the request to the end of the first round
    told: Told | None = None

    @property
    def tau(self) -> float:
        """Emitted tokens / rounds; 0 without rounds. Of a server: what it told."""
        if self.told is not None:
            return self.told.tau or 0.0
        return self.generated_tokens / self.rounds if self.rounds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens / decode seconds (prefill excluded)."""
        return self.generated_tokens / self.decode_seconds if self.decode_seconds > 0 else 0.0

    @property
    def conditional_acceptance(self) -> tuple[float, ...]:
        """[max K] accepted / judged at each place: the quality of the draft there."""
        return tuple(a / r if r else 0.0 for a, r in zip(self.accepted_at, self.reached_at, strict=True))

    @property
    def unconditional_acceptance(self) -> tuple[float, ...]:
        """[max K] accepted / rounds at each place: falls along the chain by construction."""
        return tuple(a / self.rounds if self.rounds else 0.0 for a in self.accepted_at)


@dataclass(frozen=True, slots=True)
class Finished:
    """The reply is complete and the caches equal the transcript."""

    reason: FinishReason
    stop: str  # the stop token or stop string that ended it; empty otherwise
    text: str  # characters held back when a cancel ended the reply between rounds
    usage: Usage
    notes: tuple[str, ...] = ()  # what the person should know of it: settings that were left out, and why


@dataclass(frozen=True, slots=True)
class Failed:
    """Something failed. `fatal`: the worker is gone and must be restarted."""

    message: str
    fix: str
    fatal: bool = False


Event = Loading | Ready | Prefill | Round | Finished | Failed
