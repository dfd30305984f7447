"""Measuring a server over the prompts of a bench: speed, time to the first text, and tau as far as it tells.

The same prompts, limits and sampling as for a local pair, one request at a time, after a short one that does not
count. Times are this machine's, network included, unless the server tells its own. Knows no parser.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from eagle3chat.bench import WARM_UP_TOKENS, Case, Plan
from eagle3chat.engine.errors import ServerError
from eagle3chat.engine.events import Finished, Told, Usage
from eagle3chat.engine.remote_options import ServerOptions
from eagle3chat.engine.requests import Controls, Message, Say
from eagle3chat.opening import Progress
from eagle3chat.serving import ServerSession
from eagle3chat.ui.clean import clean_line


@dataclass(frozen=True, slots=True)
class ServerSummary:
    """The figures of all replies. None: not known, since the server did not tell it for every reply."""

    runs: int
    tokens: int | None
    decode_seconds: float
    tokens_per_second: float | None
    median_tokens_per_second: float | None
    first_text_seconds: float  # the median
    rounds: int | None
    tau: float | None
    drafted: int | None
    accepted: int | None
    acceptance: tuple[float | None, ...]  # conditional, by place
    prompt_tokens: int | None
    reused_tokens: int | None  # of them, from the server's cache: they cost no time before the first text
    source: str  # of the figures of speculation
    shared: bool  # other requests are in them


def bench_server(server: ServerOptions, plan: Plan, stream: TextIO, *, table: bool) -> dict[str, object]:
    """Measure, and print the lines for people; the part of the JSON document.

    Raises:
        ServerError: The server cannot be used, or breaks off.
    """
    progress = Progress(stream, quiet=not stream.isatty())
    session = ServerSession(server, lambda stage: progress(stage, None))
    notes: dict[str, None] = {}
    usages: list[Usage] = []
    total = plan.repeat * len(plan.cases)
    try:
        _decode(session, plan, plan.cases[0], WARM_UP_TOKENS)
        for case in plan.cases * plan.repeat:
            progress(f"{case.id} on {server.place}", len(usages) / total)
            finished = _decode(session, plan, case, plan.max_new_tokens)
            usages.append(finished.usage)
            notes |= dict.fromkeys(finished.notes)
    finally:
        progress.done()
        session.close()
    summary, info = summarise(usages), session.info
    if table:
        print(clean_line(f"server   {info.model}, {info.backend} at {info.device}"))
        for line in (*info.warnings, *notes):
            print(clean_line(f"note     {line}"))
        for line in lines(summary):
            print(clean_line(line))
        print()
    return {
        "server": {
            "model": info.model,
            "kind": info.backend,
            "place": info.device,
            "prompts": len(plan.cases),
            "repeat": plan.repeat,
            "max_new_tokens": plan.max_new_tokens,
            "sampling": dataclasses.asdict(plan.sampling),
            "notes": list(notes),
            **dataclasses.asdict(summary),
        }
    }


def _decode(session: ServerSession, plan: Plan, case: Case, limit: int) -> Finished:
    user = Message("user", case.prompt)
    messages = (Message("system", plan.system), user) if plan.system else (user,)
    for event in session.reply(Say(messages, Controls(0, plan.sampling), limit)):
        if isinstance(event, Finished):
            return event
    raise ServerError("The server ended a reply without an end.")


def summarise(usages: Sequence[Usage]) -> ServerSummary:
    """What the replies come to. Counts are known only where every reply has them."""
    told = [usage.told or Told() for usage in usages]
    tokens, rounds = _sum([t.generated_tokens for t in told]), _sum([t.rounds for t in told])
    drafted, accepted = _sum([t.drafted for t in told]), _sum([t.accepted for t in told])
    seconds = sum(usage.decode_seconds for usage in usages)
    speeds = [usage.tokens_per_second for usage in usages if usage.tokens_per_second]
    taus = [t.tau for t in told if t.tau is not None]
    tau = 1.0 + accepted / rounds if rounds and accepted is not None else None
    if tau is None and len(taus) == len(told):
        tau = statistics.fmean(taus)  # of each reply as the server has it
    return ServerSummary(
        runs=len(usages),
        tokens=tokens,
        decode_seconds=seconds,
        tokens_per_second=tokens / seconds if tokens and seconds > 0 else None,
        median_tokens_per_second=statistics.median(speeds) if speeds and tokens else None,
        first_text_seconds=statistics.median(usage.first_token_seconds for usage in usages),
        rounds=rounds,
        tau=tau,
        drafted=drafted,
        accepted=accepted,
        acceptance=_acceptance(told, rounds),
        prompt_tokens=_sum([t.prompt_tokens for t in told]),
        reused_tokens=_sum([t.reused_tokens for t in told]),
        source=", ".join(dict.fromkeys(t.source for t in told if t.source)),
        shared=any(t.shared for t in told),
    )


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _acceptance(told: Sequence[Told], rounds: int | None) -> tuple[float | None, ...]:
    places = max((len(t.accepted_at or ()) for t in told), default=0)
    if rounds is None or any(t.accepted_at is None for t in told):
        return ()
    at = tuple(sum((t.accepted_at or ())[i] for t in told if i < len(t.accepted_at or ())) for i in range(places))
    return Told(rounds=rounds, accepted_at=at).conditional


def lines(summary: ServerSummary) -> list[str]:
    """The table."""
    acceptance = "  ".join("-" if p is None else f"{p:.3f}" for p in summary.acceptance) or "not known"
    drafts = "not known" if summary.drafted is None else f"{summary.accepted} of {summary.drafted}"
    others = ", other requests included" if summary.shared else ""
    reused = f"; {summary.reused_tokens} of {summary.prompt_tokens} prompt tokens were in its cache"
    return [
        f"replies  {summary.runs}, one at a time{reused if summary.reused_tokens is not None else ''}",
        "  tok/s    median  first text ms       tau       drafts accepted  accepted of judged by place",
        f"{_known(summary.tokens_per_second, 1):>7} {_known(summary.median_tokens_per_second, 1):>9}"
        f" {summary.first_text_seconds * 1e3:>14.1f} {_known(summary.tau, 3):>9} {drafts:>21}  {acceptance}",
        f"speculation: by {summary.source}{others}" if summary.source else "speculation: not known, it tells nothing",
    ]


def _known(value: float | None, digits: int) -> str:
    return "not known" if value is None else f"{value:.{digits}f}"
