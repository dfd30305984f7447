"""`eagle3chat bench`: measure chains on this machine and print a table; the last line is one JSON document.

Knows streams and words; the figures come from `bench_summary`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from eagle3chat.bench import AUTO, Plan, Run, chain_name, load_cases, measure
from eagle3chat.bench_summary import ChainSummary, summarise, tau_by_kind
from eagle3chat.engine.errors import SettingError
from eagle3chat.engine.events import Info
from eagle3chat.opening import Progress, open_wished
from eagle3chat.serving import server_wished
from eagle3chat.ui.clean import clean_line
from eagle3chat.wishes import Wishes, flag, read_wishes

CHAINS = (0, 1, 2, 3, AUTO)
MAX_NEW_TOKENS = 96
SHOWN_DIFFERENCES = 10


@dataclass(frozen=True, slots=True)
class Machine:
    """What the figures were measured on."""

    cpu: str
    cores: int  # that this process may use
    threads: int | None  # of torch; None: another library computes
    library: str | None  # the tensor library and its version; None: there is none


def bench(args: argparse.Namespace) -> int:
    """Measure and print; the exit code.

    Raises:
        Eagle3Error: Anything that the person can mend.
    """
    wishes = read_wishes(args, max_new_tokens=MAX_NEW_TOKENS)
    plan = read_plan(args, wishes)
    server = server_wished(args, wishes)
    runs_there: dict[str, object] = {}
    if server is not None:
        from eagle3chat.server_bench import bench_server

        local = flag(args, "model") is not None
        runs_there = bench_server(server, plan, sys.stderr, table=not flag(args, "json"))
        if not local:
            print(json.dumps(_rounded(runs_there), separators=(",", ":")), flush=True)
            return 0
    # The longest chain is checked against the bundle before it is loaded.
    pair = open_wished(dataclasses.replace(wishes, chain=max(plan.chains)), sys.stderr)
    progress = Progress(sys.stderr, quiet=not sys.stderr.isatty())
    machine = this_machine(pair.info.backend)
    try:
        runs = list(measure(pair, plan, progress))
    finally:
        progress.done()
        pair.close()
    summaries = summarise(runs, plan.chains, greedy=plan.sampling.temperature == 0)
    if not flag(args, "json"):
        for line in table(machine, pair.info, plan, summaries, runs):
            print(clean_line(line))
    print(document(machine, pair.info, plan, summaries, runs, runs_there), flush=True)
    return 0


def read_plan(args: argparse.Namespace, wishes: Wishes) -> Plan:
    """What the flags ask to measure.

    Raises:
        SettingError: A number is out of range, a chain is named twice, or the prompts cannot be read.
    """
    asked = flag(args, "chains")
    if asked is not None and any(isinstance(chain, int) and chain < 0 for chain in asked):
        raise SettingError("The chains must be numbers, 0 or more.", "Use --chains 0,2,auto or alike.")
    chains = CHAINS if asked is None else tuple(AUTO if chain == "auto" else int(chain) for chain in asked)
    if not chains or len(set(chains)) < len(chains):
        raise SettingError("The chains must be different from each other.", "Use --chains 0,2,auto or alike.")
    counts = {name: flag(args, name) for name in ("repeat", "limit")}
    for name, count in counts.items():
        if count is not None and count < 1:
            raise SettingError(f"A {name} of {count} measures nothing.", f"Use --{name} 1 or more.")
    file = flag(args, "prompts")
    assert wishes.max_new_tokens is not None, "the bench has a default"
    return Plan(
        cases=load_cases(Path(file) if file else None, counts["limit"]),
        chains=chains,
        repeat=counts["repeat"] or 1,
        sampling=wishes.sampling,
        max_new_tokens=wishes.max_new_tokens,
        system=wishes.system,
    )


def this_machine(backend: str) -> Machine:
    """The processor, and the library of a backend; asked before the rounds, in which torch rests."""
    torch = sys.modules.get("torch") if backend == "torch" else None  # mlx-lm may have loaded it as well
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Machine(
        cpu=_cpu_name(),
        cores=cores,
        threads=torch.get_num_threads() if torch is not None else None,
        library=f"{backend} {version(backend)}" if backend in ("torch", "mlx") else None,
    )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def table(machine: Machine, info: Info, plan: Plan, summaries: tuple[ChainSummary, ...], runs: list[Run]) -> list[str]:
    """The lines for people."""
    library = f", {machine.library}" if machine.library else ""
    library += f", {machine.threads} threads" if machine.threads else ""
    sampling = plan.sampling
    draw = "greedy" if sampling.temperature == 0 else f"temperature {sampling.temperature:g}, seed {sampling.seed}"
    draw += "".join(f", {kind} penalty {value:g}" for kind, value in sampling.penalties)
    lines = [
        f"machine  {machine.cpu}, {machine.cores} cores{library}",
        f"pair     {info.model} with {info.draft or 'no draft'}, {info.backend} {info.device} {info.dtype}",
        f"prompts  {len(plan.cases)}, {plan.repeat} x, at most {plan.max_new_tokens} tokens, {draw}",
        "",
        "chain   tok/s  median  ms/round   tau   speed-up  of totals   lowest   same text  accepted of judged",
    ]
    lines += [_row(summary) for summary in summaries]
    for summary in summaries:
        for difference in summary.differences[:SHOWN_DIFFERENCES]:
            gap = "" if difference.gap is None else f", {difference.gap:.4f} logits apart"
            lines.append(
                f"differs  chain {chain_name(difference.chain)}, {difference.case}, token {difference.index}{gap}"
            )
    longest = max(plan.chains)
    if longest > 0:
        kinds = ", ".join(f"{kind} {tau:.2f} ({count})" for kind, count, tau in tau_by_kind(runs, longest))
        lines += ["", f"tau of chain {longest} by kind of prompt (prompts): {kinds}"]
    return [*lines, ""]


def _row(summary: ChainSummary) -> str:
    acceptance = "  ".join("-" if p is None else f"{p:.3f}" for p in summary.acceptance) or "-"
    same = "-" if summary.same is None else f"{summary.same} of {summary.runs}"
    return (
        f"{chain_name(summary.chain):>5} {summary.tokens_per_second:7.1f} {summary.median_tokens_per_second:7.1f}"
        f" {summary.round_ms:9.2f} {summary.tau:5.3f} {_times(summary.speedup_median):>10}"
        f" {_times(summary.speedup_total):>10} {_times(summary.speedup_lowest):>8} {same:>11}  {acceptance}"
    )


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"


def document(
    machine: Machine,
    info: Info,
    plan: Plan,
    summaries: tuple[ChainSummary, ...],
    runs: list[Run],
    more: Mapping[str, object] | None = None,
) -> str:
    """The figures as one compact JSON document; `more`: what else was measured."""
    value = {
        **(more or {}),
        "machine": dataclasses.asdict(machine),
        "pair": dataclasses.asdict(info),
        "prompts": len(plan.cases),
        "repeat": plan.repeat,
        "max_new_tokens": plan.max_new_tokens,
        "sampling": dataclasses.asdict(plan.sampling),
        "chains": [dataclasses.asdict(summary) | {"chain": _key(summary.chain)} for summary in summaries],
        "tau_by_kind": [
            {"chain": _key(chain), "kind": kind, "prompts": count, "tau": tau}
            for chain in plan.chains
            if chain
            for kind, count, tau in tau_by_kind(runs, chain)
        ],
    }
    return json.dumps(_rounded(value), separators=(",", ":"))


def _key(chain: int) -> int | str:
    return "auto" if chain == AUTO else chain


def _rounded(value: object) -> object:
    """The same value with floats to six digits, enough for any figure here."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value
