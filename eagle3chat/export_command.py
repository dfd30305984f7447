"""`eagle3chat export`: make a bundle of a target and a draft.

Knows flags and streams; the work is that of `engine.export`.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from eagle3chat.engine.export import DEFAULT_CHAIN, DEFAULT_MAX_CHAIN, DEFAULT_MAX_PREFILL, export_bundle
from eagle3chat.opening import Progress
from eagle3chat.wishes import flag

PATHS = ("target", "draft", "output_dir", "template")
FLAGS = (*PATHS, "name", "chain", "max_chain", "max_prefill", "max_seq_len", "taps")


def export(args: argparse.Namespace) -> int:
    """Make a bundle and say where it is; the exit code.

    Raises:
        Eagle3Error: A source cannot be read or converted exactly, or the bundle cannot be written.
    """
    progress = Progress(sys.stderr)
    remarks: list[str] = []
    draft = flag(args, "draft")
    try:
        path = export_bundle(
            Path(args.target).expanduser(),
            Path(draft).expanduser() if draft else None,
            Path(args.output_dir).expanduser(),
            template=flag(args, "template"),
            chain=_given(args, "chain", DEFAULT_CHAIN if draft else 0),
            max_chain=_given(args, "max_chain", DEFAULT_MAX_CHAIN),
            max_prefill=_given(args, "max_prefill", DEFAULT_MAX_PREFILL),
            max_seq_len=flag(args, "max_seq_len"),
            taps=flag(args, "taps"),
            own_embedding=flag(args, "own_embedding"),
            name=flag(args, "name"),
            progress=progress,
            remark=remarks.append,
            command=command_line(args),
        )
    finally:
        progress.done()
        for remark in remarks:
            print(remark, file=sys.stderr)
    print(path)
    return 0


def command_line(args: argparse.Namespace) -> str:
    """The command as the bundle records it: without directories, which mean nothing on another machine."""
    words = ["eagle3chat", "export"]
    for name in FLAGS:
        value = flag(args, name)
        if value is None:
            continue
        if name in PATHS:
            value = Path(value).name
        elif name == "taps":
            value = ",".join(str(tap) for tap in value)
        words += [f"--{name.replace('_', '-')}", str(value)]
    if (own := flag(args, "own_embedding")) is not None:
        words.append("--own-embedding" if own else "--no-own-embedding")
    return shlex.join(words)


def _given(args: argparse.Namespace, name: str, default: int) -> int:
    value = flag(args, name)
    return default if value is None else int(value)
