"""What the replies of a peer come to, and the ratio of our speed to its speed, on the same prompts in the same run.

    tok/s   tokens after the first / seconds from the first to the last, on the peer's clock; ours are all tokens / all
            decode seconds, which is the same rate: its first token comes with its prompt, our first costs a pass
    tau     1 + accepted / rounds, where rounds = tokens after the first - accepted
    ratio   our tok/s over all prompts / the peer's

Pure functions of runs. Knows no process and prints nothing.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from eagle3chat.bench import Case, Run, chain_name
from eagle3chat.bench_summary import ChainSummary
from eagle3chat.peer_server import PeerReply


@dataclass(frozen=True, slots=True)
class PeerRun:
    """One reply of the peer."""

    case: Case
    chain: int  # 0: plain
    reply: PeerReply


@dataclass(frozen=True, slots=True)
class PeerSetup:
    """What ran."""

    version: str
    threads: int
    target: str  # name of its file
    target_type: str
    draft: str  # empty: none
    draft_type: str


@dataclass(frozen=True, slots=True)
class PeerSummary:
    """The figures of one chain of the peer."""

    chain: int  # 0: plain
    runs: int
    tokens: int
    tokens_per_second: float  # over all prompts
    median_tokens_per_second: float
    tau: float | None  # None: plain
    drafted: int
    accepted: int
    same: int | None  # texts that equal ours of chain 0; None: ours did not run


def summarise(peer: Sequence[PeerRun], ours: Sequence[Run]) -> tuple[PeerSummary, ...]:
    """A summary a chain, plain first."""
    return tuple(_summary([r for r in peer if r.chain == chain], ours) for chain in sorted({r.chain for r in peer}))


def _summary(peer: Sequence[PeerRun], ours: Sequence[Run]) -> PeerSummary:
    replies = [run.reply for run in peer]
    timed = [reply for reply in replies if reply.tokens > 1]
    after_first, accepted = sum(r.tokens - 1 for r in timed), sum(r.accepted for r in replies)
    seconds = sum(r.seconds for r in timed)
    rounds = after_first - accepted
    plain = {run.case.id: run.token_ids for run in ours if run.chain == 0}
    same = sum(_same(run.reply.token_ids, plain[run.case.id]) for run in peer) if plain else None
    return PeerSummary(
        chain=peer[0].chain,
        runs=len(peer),
        tokens=sum(reply.tokens for reply in replies),
        tokens_per_second=after_first / seconds if seconds else 0.0,
        median_tokens_per_second=statistics.median(r.tokens_per_second for r in timed) if timed else 0.0,
        tau=1.0 + accepted / rounds if peer[0].chain and rounds > 0 else None,
        drafted=sum(reply.drafted for reply in replies),
        accepted=accepted,
        same=same,
    )


def _same(theirs: Sequence[int], ours: Sequence[int]) -> bool:
    """Whether two texts are equal; theirs lacks the token that ended it, and may have it where that was drafted."""
    return tuple(ours[: len(theirs)]) == tuple(theirs) and len(ours) - len(theirs) in (0, 1)


def ratio(ours: ChainSummary, peer: PeerSummary) -> float | None:
    """Our speed / the peer's, over all prompts."""
    return ours.tokens_per_second / peer.tokens_per_second if peer.tokens_per_second else None


def lines(setup: PeerSetup, peer: Sequence[PeerSummary], ours: Sequence[ChainSummary], remark: str = "") -> list[str]:
    """The table; `remark` is about the target's type."""
    rows = [
        f"peer     llama.cpp {setup.version}, llama-server, {setup.threads} threads, in turns with the above",
        f"         target {setup.target}, {setup.target_type}{remark}",
    ]
    if setup.draft:
        rows.append(f"         draft {setup.draft}, {setup.draft_type}")
    rows.append("peer's chain   tok/s  median     tau  accepted of drafts  text as our chain 0")
    rows += [_row(summary) for summary in peer]
    rows += [f"ours / peer's  {line}" for line in _ratios(peer, ours)]
    return [*rows, ""]


def _row(summary: PeerSummary) -> str:
    drafts = f"{summary.accepted} of {summary.drafted}" if summary.chain else "-"
    tau = "-" if summary.tau is None else f"{summary.tau:.3f}"
    same = "-" if summary.same is None else f"{summary.same} of {summary.runs}"
    return (
        f"{summary.chain:>12} {summary.tokens_per_second:7.1f} {summary.median_tokens_per_second:7.1f} {tau:>7}"
        f" {drafts:>19} {same:>20}"
    )


def _ratios(peer: Sequence[PeerSummary], ours: Sequence[ChainSummary]) -> list[str]:
    """Plain against plain, the fastest against the fastest."""
    found = []
    plain, theirs = next((s for s in ours if s.chain == 0), None), next((s for s in peer if s.chain == 0), None)
    if plain is not None and theirs is not None and (times := ratio(plain, theirs)) is not None:
        found.append(f"plain {times:.2f}x")
    best = max(ours, key=lambda s: s.tokens_per_second)
    best_there = max(peer, key=lambda s: s.tokens_per_second)
    if (times := ratio(best, best_there)) is not None:
        found.append(f"fastest {times:.2f}x (chain {chain_name(best.chain)} / chain {best_there.chain})")
    return found


def part(setup: PeerSetup, peer: Sequence[PeerSummary], ours: Sequence[ChainSummary]) -> dict[str, object]:
    """The part of the JSON document."""
    plain = next((s for s in peer if s.chain == 0), None)
    ratios = [
        {"chain": chain_name(s.chain), "to_plain_peer": ratio(s, plain) if plain is not None else None} for s in ours
    ]
    setting = {"name": "llama.cpp", **dataclasses.asdict(setup)}
    return {"peer": {**setting, "chains": [dataclasses.asdict(s) for s in peer], "ratios": ratios}}
