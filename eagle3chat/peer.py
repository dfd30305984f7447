"""Another engine beside ours in one bench: which program, its files, and its replies in turns with our own.

llama.cpp is the one that is known. Its server is started on loopback, once plain and once with the draft where there is
one, is given the token ids of each prompt after our chains had their turn, and is ended with the bench. Knows a pair,
GGUF files and processes by their modules; the figures are made in `peer_summary`.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from eagle3chat.bench import WARM_UP_TOKENS, Case, Plan, Run
from eagle3chat.bench_machine import this_machine
from eagle3chat.bench_summary import ChainSummary
from eagle3chat.engine.bundle import Bundle, open_bundle
from eagle3chat.engine.default_pair import find_target
from eagle3chat.engine.errors import SettingError
from eagle3chat.engine.pair import Pair
from eagle3chat.engine.requests import Controls, Message, Say
from eagle3chat.opening import bundle_of
from eagle3chat.peer_gguf import file_type, write_draft
from eagle3chat.peer_program import Program, find_program, quantise
from eagle3chat.peer_server import PeerServer
from eagle3chat.peer_summary import PeerRun, PeerSetup, lines, part, summarise
from eagle3chat.wishes import Wishes, flag

KNOWN = "llama.cpp"
FAST_TYPE = "Q4_0"  # the one that its CPU kernels are repacked for
MOST_CONTEXT = 8192


@dataclass(frozen=True, slots=True)
class PeerWish:
    """What was asked for."""

    program: Program
    target: Path | None = None  # a GGUF; None: the bundle's own, in the type that is fast there
    draft: Path | None = None  # a GGUF; None: the bundle's own


@dataclass(frozen=True, slots=True)
class Report:
    """What is printed of a peer."""

    lines: tuple[str, ...]  # for people
    part: Mapping[str, object]  # of the JSON document


NO_PEER = Report((), {})


def read_peer(args: argparse.Namespace, plan: Plan) -> PeerWish | None:
    """The peer that the flags name; None: none.

    Raises:
        SettingError: It is not known, a flag needs another one, or the bench is not greedy.
    """
    peer, files = flag(args, "peer"), [flag(args, name) for name in ("peer_target", "peer_draft")]
    if peer is None:
        if any(files):
            raise SettingError("--peer-target and --peer-draft are about a peer.", f"Add --peer {KNOWN}=PATH.")
        return None
    name, _, path = peer.partition("=")
    if name != KNOWN or not path:
        raise SettingError(f"No peer is called {peer}.", f"Use --peer {KNOWN}=PATH, its directory or its llama-server.")
    if flag(args, "contexts") is not None or (flag(args, "server") and not flag(args, "model")):
        raise SettingError("A peer is measured beside the chains of a local pair.", "Leave out --contexts or --server.")
    if plan.sampling.temperature != 0 or plan.sampling.penalties:
        raise SettingError("A peer is compared on greedy texts.", "Leave out the temperature and the penalties.")
    for file in files:
        if file is not None and not Path(file).is_file():
            raise SettingError(f"There is no file {file}.", "Check --peer-target and --peer-draft.")
    return PeerWish(find_program(Path(path)), *(Path(file) if file else None for file in files))


class Peer:
    """llama.cpp with the pair's weights, in turns with the pair.

    Args:
        wish: What was asked for.
        wishes: Name the pair's bundle.
        pair: Open; makes the prompts' token ids.
        plan: What is decoded.

    Raises:
        SettingError: The program is too old or fails, or the weights cannot be written for it.
    """

    def __init__(self, wish: PeerWish, wishes: Wishes, pair: Pair, plan: Plan) -> None:
        self._pair, self._plan = pair, plan
        self._runs: list[PeerRun] = []
        self._servers: dict[int, PeerServer] = {}
        self._open = ExitStack()
        bundle = open_bundle(Path(bundle_of(wishes, sys.stderr, quiet=True).options.bundle))
        threads = this_machine(pair).threads or os.cpu_count() or 1
        try:
            self._setup = self._start(wish, bundle, threads)
        except BaseException:
            self._open.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def _start(self, wish: PeerWish, bundle: Bundle, threads: int) -> PeerSetup:
        """Write the files, start the processes, and let each say a few tokens that do not count."""
        plan, program = self._plan, wish.program
        chain = max((chain for chain in plan.chains if chain > 0), default=0)
        if bundle.manifest.draft is None and wish.draft is None:
            chain = 0
        work = Path(self._open.enter_context(tempfile.TemporaryDirectory(prefix="eagle3chat-peer-")))
        target = wish.target or target_file(program, bundle, work)
        draft = (wish.draft or write_draft(bundle, target, work / "draft.gguf")) if chain else None
        context = min(self._pair.info.capacity, MOST_CONTEXT)
        self._servers[0] = self._opened(PeerServer(program, target, None, 0, threads, context))
        if draft is not None:
            self._servers[chain] = self._opened(PeerServer(program, target, draft, chain, threads, context))
        for server in self._servers.values():
            server.reply(self._prompt(plan.cases[0]), WARM_UP_TOKENS)
        drafted = (draft.name, file_type(draft)) if draft is not None else ("", "")
        return PeerSetup(program.version, threads, target.name, file_type(target), *drafted)

    def _opened(self, server: PeerServer) -> PeerServer:
        self._open.callback(server.close)
        return server

    def beside(self, runs: Iterable[Run]) -> Iterator[Run]:
        """The runs of a bench as they come; after the last chain of each prompt the peer decodes it.

        Raises:
            SettingError: The peer ended, or refuses a prompt.
        """
        for count, run in enumerate(runs, 1):
            yield run
            if count % len(self._plan.chains) == 0:
                ids = self._prompt(run.case)
                for chain, server in self._servers.items():
                    self._runs.append(PeerRun(run.case, chain, server.reply(ids, self._plan.max_new_tokens)))

    def _prompt(self, case: Case) -> list[int]:
        user = Message("user", case.prompt)
        messages = (Message("system", self._plan.system), user) if self._plan.system else (user,)
        return self._pair.prompt_ids(Say(messages, Controls(0)))

    def report(self, runs: Sequence[Run], summaries: Sequence[ChainSummary]) -> Report:
        """The figures beside ours."""
        peer = summarise(self._runs, runs)
        fast = "" if self._setup.target_type == FAST_TYPE else f"; its fast type on a CPU is {FAST_TYPE}"
        return Report(tuple(lines(self._setup, peer, summaries, fast)), part(self._setup, peer, summaries))


def target_file(program: Program, bundle: Bundle, work: Path) -> Path:
    """The bundle's target as a GGUF of the type that is fast there, from the file that the bundle was made of.

    Raises:
        SettingError: That file is not known here.
    """
    source, names = find_target(), {source.name for source in bundle.manifest.sources if source.role == "target"}
    if source is None or source.name not in names:
        raise SettingError(
            "The peer needs the target as a GGUF file, and only that of the built-in pair is found by itself.",
            "Name one with --peer-target FILE.gguf.",
        )
    return quantise(program, source, work / f"{source.stem}-{FAST_TYPE}.gguf", FAST_TYPE)
