"""`eagle3chat bench`: measure chains on this machine and print a table; the last line is one JSON document.

Knows streams and words; the figures come from the bench_* modules.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from eagle3chat.bench import AUTO, Plan, Run, load_cases, measure
from eagle3chat.bench_contexts import measure_contexts
from eagle3chat.bench_machine import meter_of, this_machine
from eagle3chat.bench_plot import draw
from eagle3chat.bench_profile import profile
from eagle3chat.bench_rows import row_costs
from eagle3chat.bench_summary import summarise
from eagle3chat.bench_table import Figures, context_document, context_table, document, packed, table
from eagle3chat.engine.errors import SettingError
from eagle3chat.engine.pair import Pair
from eagle3chat.opening import Progress, open_wished
from eagle3chat.peer import NO_PEER, Peer, read_peer
from eagle3chat.serving import server_wished
from eagle3chat.ui.clean import clean_line
from eagle3chat.wishes import Wishes, flag, read_wishes

CHAINS = (0, 1, 2, 3, AUTO)
CONTEXT_CHAINS = (0, 3)
MAX_NEW_TOKENS = 96


def bench(args: argparse.Namespace) -> int:
    """Measure and print; the exit code.

    Raises:
        Eagle3Error: Anything that the person can mend.
    """
    wishes = read_wishes(args, max_new_tokens=MAX_NEW_TOKENS)
    plan = read_plan(args, wishes)
    picture = flag(args, "plot")
    if picture is not None and not Path(picture).parent.is_dir():
        raise SettingError(f"There is no directory for the plot {picture}.", "Check --plot.")
    peer_wish = read_peer(args, plan)
    server = server_wished(args, wishes)
    runs_there: dict[str, object] = {}
    if server is not None:
        from eagle3chat.server_bench import bench_server

        local = flag(args, "model") is not None
        runs_there = bench_server(server, plan, sys.stderr, table=not flag(args, "json"))
        if not local:
            print(packed(runs_there), flush=True)
            return 0
    # The longest chain is checked against the bundle before it is loaded.
    pair = open_wished(dataclasses.replace(wishes, chain=max(plan.chains)), sys.stderr)
    lengths = flag(args, "contexts")
    with ExitStack() as opened:
        opened.callback(pair.close)
        if lengths is not None:
            return _bench_contexts(pair, plan, lengths, table=not flag(args, "json"))
        peer = opened.enter_context(Peer(peer_wish, wishes, pair, plan)) if peer_wish is not None else None
        beside = peer.beside if peer is not None else iter
        figures = bench_pair(pair, plan, profiled=bool(flag(args, "profile")), beside=beside)
    report = peer.report(figures.runs, figures.summaries) if peer is not None else NO_PEER
    if not flag(args, "json"):
        for line in (*table(figures), *report.lines):
            print(clean_line(line))
    print(document(figures, {**runs_there, **report.part}), flush=True)
    if picture is not None:
        write_plot(Path(picture), figures)
    return 0


def _bench_contexts(pair: Pair, plan: Plan, lengths: Sequence[int], *, table: bool) -> int:
    progress = Progress(sys.stderr, quiet=not sys.stderr.isatty())
    machine = this_machine(pair)
    try:
        contexts = measure_contexts(pair, plan, lengths, meter_of(pair.info, machine), progress)
    finally:
        progress.done()
    if table:
        for line in context_table(machine, pair.info, plan, contexts):
            print(clean_line(line))
    print(context_document(machine, pair.info, plan, contexts), flush=True)
    return 0


def bench_pair(
    pair: Pair, plan: Plan, *, profiled: bool = False, beside: Callable[[Iterator[Run]], Iterator[Run]] = iter
) -> Figures:
    """Measure an open pair by the plan.

    Args:
        beside: What else is measured while the runs come.

    Raises:
        PromptError: A prompt does not fit the context.
        SettingError: A chain is above what the pair can draft.
    """
    progress = Progress(sys.stderr, quiet=not sys.stderr.isatty())
    machine = this_machine(pair)
    meter = meter_of(pair.info, machine)
    try:
        runs = tuple(beside(measure(pair, plan, progress)))
        profiles = profile(pair, plan, runs, progress) if profiled else ()
        memory = meter.memory()  # before the bandwidth, whose buffer would count
        progress("reading memory", None)
        bandwidth = meter.bandwidth()
    finally:
        progress.done()
    return Figures(
        machine=machine,
        info=pair.info,
        plan=plan,
        runs=runs,
        summaries=summarise(runs, plan.chains, greedy=plan.sampling.temperature == 0),
        rows=row_costs(runs, pair.info.pass_bytes, bandwidth.bytes_per_second if bandwidth else None),
        memory=memory,
        bandwidth=bandwidth,
        profiles=profiles,
    )


def write_plot(path: Path, figures: Figures) -> None:
    """Draw the figures into a file.

    Raises:
        SettingError: It cannot be written.
    """
    info, machine = figures.info, figures.machine
    title = f"{info.model}, {info.backend} {info.device} {info.dtype}, {machine.cpu}, {len(figures.plan.cases)} prompts"
    try:
        path.write_text(draw(title, figures.summaries, figures.rows), encoding="utf-8")
    except OSError as error:
        raise SettingError(f"The plot {path} cannot be written: {error.strerror}.", "Check --plot.") from error


def read_plan(args: argparse.Namespace, wishes: Wishes) -> Plan:
    """What the flags ask to measure.

    Raises:
        SettingError: A number is out of range, a chain is named twice, or the prompts cannot be read.
    """
    asked = flag(args, "chains")
    if asked is not None and any(isinstance(chain, int) and chain < 0 for chain in asked):
        raise SettingError("The chains must be numbers, 0 or more.", "Use --chains 0,2,auto or alike.")
    usual = CHAINS if flag(args, "contexts") is None else CONTEXT_CHAINS
    chains = usual if asked is None else tuple(AUTO if chain == "auto" else int(chain) for chain in asked)
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
