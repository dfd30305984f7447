"""A bench's figures for people and for programs: the lines of a table, and one JSON document.

The document's keys are told in docs/bench.md. Knows figures, no stream and no engine.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass

from eagle3chat.bench import AUTO, WARM_UP_TOKENS, Plan, Run, chain_name
from eagle3chat.bench_contexts import UNCOUNTED, Context
from eagle3chat.bench_contexts import lines as context_lines
from eagle3chat.bench_machine import Machine
from eagle3chat.bench_profile import Profile
from eagle3chat.bench_profile import lines as profile_lines
from eagle3chat.bench_rows import RowCost, Spread
from eagle3chat.bench_summary import ChainSummary, tau_by_kind
from eagle3chat.engine.events import Info
from eagle3chat.engine.meter import Bandwidth, Memory

SHOWN_DIFFERENCES = 10
SHOWN_SLOWER = 5


@dataclass(frozen=True, slots=True)
class Figures:
    """All that a bench of a local pair measured."""

    machine: Machine
    info: Info
    plan: Plan
    runs: tuple[Run, ...]
    summaries: tuple[ChainSummary, ...]
    rows: tuple[RowCost, ...]
    memory: Memory
    bandwidth: Bandwidth | None
    profiles: tuple[Profile, ...] = ()


def table(figures: Figures) -> list[str]:
    """The lines for people."""
    plan = figures.plan
    lines = [*setting(figures.machine, figures.info, figures.memory, figures.bandwidth), *_order(plan), ""]
    lines.append("chain   tok/s  median  ms/round   tau   speed-up  of totals   lowest   same text  accepted of judged")
    lines += [_row(summary) for summary in figures.summaries]
    lines += _slower(figures.summaries)
    for summary in figures.summaries:
        for difference in summary.differences[:SHOWN_DIFFERENCES]:
            gap = "" if difference.gap is None else f", {difference.gap:.4f} logits apart"
            lines.append(
                f"differs  chain {chain_name(difference.chain)}, {difference.case}, token {difference.index}{gap}"
            )
    lines += [
        "",
        "chain  rounds  ms: middle, quartiles   speed-ups of prompts: middle, quartiles   draft verify   host"
        "  host of replies",
    ]
    lines += [_share_row(summary) for summary in figures.summaries]
    lines += ["", *_row_table(figures.rows)]
    longest = max(plan.chains)
    if longest > 0:
        kinds = ", ".join(f"{kind} {tau:.2f} ({count})" for kind, count, tau in tau_by_kind(figures.runs, longest))
        lines += ["", f"tau of chain {longest} by kind of prompt (prompts): {kinds}"]
    lines.append("")
    return [*lines, *profile_lines(figures.profiles)] if figures.profiles else lines


def context_table(machine: Machine, info: Info, plan: Plan, contexts: tuple[Context, ...]) -> list[str]:
    """The lines for people about contexts."""
    return [
        *setting(machine, info, contexts[-1].memory_after, None),
        f"rounds   {plan.repeat} x {plan.max_new_tokens} tokens with each chain after the same prompt, another chain"
        f" first each time; not counted: {WARM_UP_TOKENS} tokens with each before all, {UNCOUNTED} rounds of each",
        "",
        *context_lines(contexts),
    ]


def context_document(machine: Machine, info: Info, plan: Plan, contexts: tuple[Context, ...]) -> str:
    """The same as one JSON document."""
    return packed(
        {
            "machine": dataclasses.asdict(machine),
            "pair": dataclasses.asdict(info),
            "repeat": plan.repeat,
            "max_new_tokens": plan.max_new_tokens,
            "sampling": dataclasses.asdict(plan.sampling),
            "contexts": [dataclasses.asdict(context) for context in contexts],
        }
    )


def setting(machine: Machine, info: Info, memory: Memory, bandwidth: Bandwidth | None) -> list[str]:
    """What was measured on, and with what."""
    library = f", {machine.library}" if machine.library else ""
    library += f", {machine.threads} threads" if machine.threads else ""
    reads = ""
    if bandwidth is not None:
        how = f"{bandwidth.how}, {bandwidth.buffer_bytes >> 20} MiB, the fastest of {bandwidth.passes} passes"
        middle = f"{bandwidth.median_bytes_per_second / 1e9:.1f} in the middle"
        reads = f"reads    {bandwidth.bytes_per_second / 1e9:.1f} GB/s, {middle} ({how})"
    weights = f", {info.pass_bytes / 1e6:.1f} MB of weights a pass" if info.pass_bytes else ""
    return [
        f"machine  {machine.cpu}, {machine.cores} cores{library}",
        *([reads] if reads else []),
        f"memory   {_memory(memory)}",
        f"pair     {info.model} with {info.draft or 'no draft'}, {info.backend} {info.device} {info.dtype}{weights}",
    ]


def _memory(memory: Memory) -> str:
    parts = []
    if memory.peak_resident is not None:
        now = "" if memory.resident is None else f", now {_mib(memory.resident)}"
        parts.append(f"resident at most {_mib(memory.peak_resident)} (loading included){now}")
    if memory.peak_device is not None and memory.device is not None:
        parts.append(f"the library's at most {_mib(memory.peak_device)}, now {_mib(memory.device)}")
    return "; ".join(parts) or "not known"


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"


def _order(plan: Plan) -> list[str]:
    sampling = plan.sampling
    draw = "greedy" if sampling.temperature == 0 else f"temperature {sampling.temperature:g}, seed {sampling.seed}"
    draw += "".join(f", {kind} penalty {value:g}" for kind, value in sampling.penalties)
    return [
        f"prompts  {len(plan.cases)}, {plan.repeat} x, at most {plan.max_new_tokens} tokens, {draw}",
        f"order    every chain on a prompt before the next prompt, another one first each time; before all, a reply of"
        f" {WARM_UP_TOKENS} tokens with each chain that does not count",
    ]


def _row(summary: ChainSummary) -> str:
    acceptance = "  ".join("-" if p is None else f"{p:.3f}" for p in summary.acceptance) or "-"
    same = "-" if summary.same is None else f"{summary.same} of {summary.runs}"
    return (
        f"{chain_name(summary.chain):>5} {summary.tokens_per_second:7.1f} {summary.median_tokens_per_second:7.1f}"
        f" {summary.round_ms:9.2f} {summary.tau:5.3f} {_times(summary.speedup_median):>10}"
        f" {_times(summary.speedup_total):>10} {_times(summary.speedup_lowest):>8} {same:>11}  {acceptance}"
    )


def _slower(summaries: tuple[ChainSummary, ...]) -> list[str]:
    """The prompts on which a chain lost against chain 0, or gained least."""
    lines = []
    for summary in summaries:
        if summary.chain == 0 or not summary.slower:
            continue
        shown = ", ".join(f"{case} {ratio:.2f}x" for case, ratio in summary.slower[:SHOWN_SLOWER])
        more = len(summary.slower) - SHOWN_SLOWER
        lines.append(f"lowest   chain {chain_name(summary.chain)}: {shown}" + (f" and {more} more" if more > 0 else ""))
    return lines


def _share_row(summary: ChainSummary) -> str:
    shares = [summary.draft_share, summary.verify_share, summary.host_share]
    told = " ".join("     -" if share is None else f"{share:6.1%}" for share in shares)
    speedups = "-" if summary.speedups is None else _spread(summary.speedups, 2)
    rounds = _spread(summary.rounds_ms, 2)
    hosts = "-" if summary.host_shares is None else _percents(summary.host_shares)
    return f"{chain_name(summary.chain):>5} {summary.rounds:>7}   {rounds:<23} {speedups:<39} {told}  {hosts}"


def _percents(spread: Spread) -> str:
    return f"{spread.median:.1%} ({spread.low:.1%} to {spread.high:.1%})"


def _spread(spread: Spread, digits: int) -> str:
    return f"{spread.median:.{digits}f} ({spread.low:.{digits}f} to {spread.high:.{digits}f})"


def _row_table(rows: tuple[RowCost, ...]) -> list[str]:
    lines = ["rows of a pass  rounds  verify ms: middle, quartiles  of 1 row  round of 1 row  weights GB/s  of reads"]
    for cost in rows:
        verify = "-" if cost.verify_ms is None else _spread(cost.verify_ms, 2)
        rate = "-" if cost.weight_bytes_per_second is None else f"{cost.weight_bytes_per_second / 1e9:.1f}"
        share = "-" if cost.bandwidth_share is None else f"{cost.bandwidth_share:.0%}"
        lines.append(
            f"{cost.rows:>14} {cost.rounds:>7}  {verify:<28}  {_times(cost.verify_ratio):>8}"
            f" {_times(cost.round_ratio):>15} {rate:>13} {share:>9}"
        )
    return lines


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"


def document(figures: Figures, more: Mapping[str, object] | None = None) -> str:
    """The figures as one compact JSON document; `more`: what else was measured."""
    plan, bandwidth = figures.plan, figures.bandwidth
    value = {
        **(more or {}),
        "machine": dataclasses.asdict(figures.machine),
        "pair": dataclasses.asdict(figures.info),
        "memory": dataclasses.asdict(figures.memory),
        "read_bandwidth": None if bandwidth is None else dataclasses.asdict(bandwidth),
        "prompts": len(plan.cases),
        "repeat": plan.repeat,
        "max_new_tokens": plan.max_new_tokens,
        "warm_up_tokens": WARM_UP_TOKENS,
        "sampling": dataclasses.asdict(plan.sampling),
        "chains": [dataclasses.asdict(s) | {"chain": key(s.chain), "slower": _cases(s)} for s in figures.summaries],
        "rows": [dataclasses.asdict(cost) for cost in figures.rows],
        "profile": [
            dataclasses.asdict(p) | {"chain": key(p.chain), "phases": dict(p.phases)} for p in figures.profiles
        ],
        "tau_by_kind": [
            {"chain": key(chain), "kind": kind, "prompts": count, "tau": tau}
            for chain in plan.chains
            if chain
            for kind, count, tau in tau_by_kind(figures.runs, chain)
        ],
    }
    return packed(value)


def _cases(summary: ChainSummary) -> list[dict[str, object]]:
    return [{"case": case, "speedup": ratio} for case, ratio in summary.slower]


def key(chain: int) -> int | str:
    """A chain as programs read it."""
    return "auto" if chain == AUTO else chain


def packed(value: object) -> str:
    """Compact JSON with floats to six digits, enough for any figure here."""
    return json.dumps(_rounded(value), separators=(",", ":"))


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value
