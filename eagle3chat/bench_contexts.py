"""Time per round against the context: prompts of given lengths, decoded with each chain in turns, and memory.

A prompt is the bench's prompts over and over, cut to so many tokens, so what is said means nothing; a round's cost
does not hang on it, but the acceptance does: rounds are compared here and not tokens a second. Knows no tensors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from eagle3chat.bench import WARM_UP_TOKENS, Plan, chain_name, turned
from eagle3chat.bench_rows import Spread
from eagle3chat.engine.errors import SettingError
from eagle3chat.engine.meter import Memory, Meter
from eagle3chat.engine.pair import Pair
from eagle3chat.engine.requests import Controls, Piece
from eagle3chat.engine.speculate import Step, speculate

UNCOUNTED = 2  # first rounds after a prefill: they meet cold memory


@dataclass(frozen=True, slots=True)
class Context:
    """What a context of so many tokens costs."""

    tokens: int
    prefill_seconds: float
    memory_before: Memory  # the prompt is cached, nothing is generated
    memory_after: Memory
    generated: int  # tokens between the two, over all chains
    rounds: tuple[ContextRounds, ...]


@dataclass(frozen=True, slots=True)
class ContextRounds:
    """The rounds of one chain in a context."""

    chain: int
    rounds: int  # that count
    round_ms: Spread
    verify_ms: Spread | None  # None: not timed apart
    growth_us: float | None  # of a round by each 1,000 tokens more than in the context before; None: there is none


def measure_contexts(
    pair: Pair, plan: Plan, lengths: Sequence[int], meter: Meter, tell: Callable[[str, float], None] | None = None
) -> tuple[Context, ...]:
    """Measure each length, the shortest first.

    Args:
        pair: Open and idle.
        plan: Its prompts, chains, repeats, sampling and tokens of a reply.
        lengths: Tokens of the prompts.

    Raises:
        SettingError: A length with a reply does not fit the context, or is too short; a chain is `auto`.
    """
    chains = tuple(chain for chain in plan.chains if chain >= 0)
    ordered = sorted(set(lengths))
    room = pair.backend.capacity + 1 - plan.max_new_tokens
    if not ordered or ordered[0] < 2 or ordered[-1] > room:
        fix = f"Use --contexts with numbers from 2 to {room}, or a shorter --max-new-tokens."
        raise SettingError("A context with its reply does not fit.", fix)
    if not chains:
        raise SettingError("A context is measured with fixed chains.", "Use --chains 0,3 or alike.")
    ids = _long_prompt(pair, plan, ordered[-1])
    _warm_up(pair, plan, chains, ids[: ordered[0]])
    found: list[Context] = []
    for number, length in enumerate(ordered):
        if tell is not None:
            tell(f"a context of {length}", number / len(ordered))
        found.append(_measured(pair, plan, chains, ids[:length], meter))
    return tuple(_with_growth(found))


def _long_prompt(pair: Pair, plan: Plan, length: int) -> list[int]:
    some = pair.codec.encode([Piece("content", f"{case.prompt}\n") for case in plan.cases], pair.bos_id)
    return (some * -(-length // len(some)))[:length]


def _measured(pair: Pair, plan: Plan, chains: Sequence[int], prompt: list[int], meter: Meter) -> Context:
    started = time.perf_counter()
    for _ in pair.backend.prefill(prompt, 0):
        pass
    prefilled = time.perf_counter() - started
    keep = max(0, len(prompt) - 2)
    steps: dict[int, list[Step]] = {chain: [] for chain in chains}
    before = meter.memory()
    generated = 0
    for repeat in range(plan.repeat):
        for chain in turned(chains, repeat):
            for _ in pair.backend.prefill(prompt, keep):  # only the last row is computed anew
                pass
            own = list(_decode(pair, plan, len(prompt), chain))
            generated += sum(len(step.tokens) for step in own)
            steps[chain] += own[UNCOUNTED:] or own
    return Context(
        tokens=len(prompt),
        prefill_seconds=prefilled,
        memory_before=before,
        memory_after=meter.memory(),
        generated=generated,
        rounds=tuple(_rounds(chain, own) for chain, own in steps.items()),
    )


def _warm_up(pair: Pair, plan: Plan, chains: Sequence[int], prompt: list[int]) -> None:
    for chain in chains:
        for _ in pair.backend.prefill(prompt, 0):
            pass
        for _ in _decode(
            pair, replace(plan, max_new_tokens=min(WARM_UP_TOKENS, plan.max_new_tokens)), len(prompt), chain
        ):
            pass


def _decode(pair: Pair, plan: Plan, committed: int, chain: int) -> Iterator[Step]:
    """Past any stop token, so that every chain has the same number of tokens."""
    controls = Controls(chain, plan.sampling)
    return speculate(
        pair.backend, committed, lambda: controls, lambda offered: (len(offered), False), plan.max_new_tokens
    )


def _rounds(chain: int, steps: Sequence[Step]) -> ContextRounds:
    full = [step for step in steps if len(step.verdict.drafted) == chain] or list(steps)  # the last ones draft less
    verify = [step.verdict.verify_seconds for step in full if step.verdict.verify_seconds is not None]
    return ContextRounds(
        chain=chain,
        rounds=len(full),
        round_ms=Spread.of(step.seconds * 1e3 for step in full),
        verify_ms=Spread.of(seconds * 1e3 for seconds in verify) if len(verify) == len(full) else None,
        growth_us=None,
    )


def _with_growth(contexts: Sequence[Context]) -> Iterator[Context]:
    yield from contexts[:1]
    for shorter, longer in pairwise(contexts):
        thousands = (longer.tokens - shorter.tokens) / 1000.0
        rounds = tuple(
            replace(own, growth_us=(own.round_ms.median - before.round_ms.median) * 1e3 / thousands)
            for before, own in zip(shorter.rounds, longer.rounds, strict=True)
        )
        yield replace(longer, rounds=rounds)


def lines(contexts: Sequence[Context]) -> list[str]:
    """The table: a context and a chain a line."""
    told = [
        "context  prefill tok/s  chain  rounds  round ms: middle, quartiles  verify ms   x shortest"
        "  us more by 1,000 tokens"
    ]
    for context in contexts:
        head = f"{context.tokens:>7} {_rate(context):>14}"
        for first, own in zip(contexts[0].rounds, context.rounds, strict=True):
            spread = f"{own.round_ms.median:.2f} ({own.round_ms.low:.2f} to {own.round_ms.high:.2f})"
            verify = "-" if own.verify_ms is None else f"{own.verify_ms.median:.2f}"
            ratio = f"{own.round_ms.median / first.round_ms.median:.2f}x"
            growth = "-" if own.growth_us is None else f"{own.growth_us:.0f}"
            told.append(
                f"{head} {chain_name(own.chain):>6} {own.rounds:>7}  {spread:<27} {verify:>10} {ratio:>12} {growth:>24}"
            )
            head = " " * len(head)
    told += ["", "context  memory before and after generating (tokens)"]
    told += [f"{c.tokens:>7}  {_memory(c)} ({c.generated})" for c in contexts]
    return [*told, ""]


def _rate(context: Context) -> str:
    return f"{(context.tokens - 1) / context.prefill_seconds:.0f}" if context.prefill_seconds > 0 else "-"


def _memory(context: Context) -> str:
    before, after = context.memory_before, context.memory_after
    parts = [("resident", before.resident, after.resident), ("the library's", before.device, after.device)]
    told = [
        f"{name} {old / 2**20:,.1f} MiB, {(new - old) / 2**20:+.1f} MiB"
        for name, old, new in parts
        if old is not None and new is not None
    ]
    return "; ".join(told) or "not known"
