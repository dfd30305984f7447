"""Opening a pair and asking it about itself: the questions of selfcheck, and what they may cost.

Rows are compared whenever that is done at once; all else is asked for. Knows no tensors.
"""

from __future__ import annotations

import atexit
import dataclasses
import gc
import math
from pathlib import Path

from eagle3chat.engine.manifest import read_manifest
from eagle3chat.engine.pair import Pair, Progress, open_pair
from eagle3chat.engine.requests import Controls, Message, PairOptions, Piece, Say
from eagle3chat.engine.selfcheck import PROMPTS, TEXT, Hits, Taps, compare_rows, first_hits, shifted

SECONDS = 0.05  # that comparing rows may take without being asked for
BYTES = 2**30  # of a pair that is small enough to try


def open_checked(options: PairOptions, progress: Progress | None = None, first: Say | None = None) -> Pair:
    """`open_pair`, with what the pair says about itself in its info.

    With `options.check` the draft is first tried on the boundaries below and above, each time with a pair of its own:
    memory holds one at a time.

    Raises:
        Eagle3Error: As `open_pair`.
    """
    others = _other_taps(options, progress, first) if options.check else ()
    pair = open_pair(options, progress, first)
    scripted = options.backend == "scripted"
    rows = taps = None
    if options.check or (not scripted and pair.info.memory_bytes <= BYTES):
        tokens = pair.codec.encode([Piece("content", TEXT)], pair.bos_id)
        exact = pair.info.dtype in ("float32", "none")
        rows = compare_rows(pair.backend, tokens, exact=exact, seconds=math.inf if options.check else SECONDS)
    if others:
        taps = Taps(Hits(_named_taps(options), _hits(pair)), others)
    found = [finding for finding in (rows, taps) if finding is not None]
    checks = tuple(str(finding) for finding in found) if options.check else ()
    warnings = (*pair.info.warnings, *(finding.warning for finding in found if finding.warning))
    return dataclasses.replace(pair, info=dataclasses.replace(pair.info, checks=checks, warnings=warnings))


def settle(options: PairOptions) -> None:
    """Keep the collector from looking through what opening has made, which would stop a reply for a tenth of a second.

    For a process that opens one pair: garbage of the moment stays, so where other pairs were tried it goes first.
    """
    if options.backend == "scripted":
        return
    if options.check:
        gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # libraries complain of what is left at the end


def _other_taps(options: PairOptions, progress: Progress | None, first: Say | None) -> tuple[Hits, ...]:
    """The draft on the boundaries below and above those that its bundle names."""
    named = _named_taps(options)
    if not named:
        return ()
    others = []
    for taps in shifted(named, read_manifest(Path(options.bundle)).target.num_layers):
        pair = open_pair(dataclasses.replace(options, taps=taps), progress, first)
        if progress is not None:
            progress(f"trying taps {','.join(map(str, taps))}", None)
        try:
            if pair.backend.max_chain:
                others.append(Hits(taps, _hits(pair)))
        finally:
            pair.close()
    return tuple(others)


def _named_taps(options: PairOptions) -> tuple[int, ...]:
    """The bundle's; none without a bundle or a draft."""
    if options.backend == "scripted" or not options.bundle:
        return ()
    draft = read_manifest(Path(options.bundle)).draft
    return draft.taps if draft else ()


def _hits(pair: Pair) -> tuple[bool, ...]:
    prompts = [pair.prompt_ids(Say((Message("user", text),), Controls(0))) for text in PROMPTS]
    return first_hits(pair.backend, prompts, pair.stops.ids)
