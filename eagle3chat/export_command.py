"""`eagle3chat export`: make a bundle of a target and a draft.

Knows flags and streams; the work is that of `engine.export`.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from eagle3chat.engine.errors import SettingError
from eagle3chat.engine.export import DEFAULT_CHAIN, DEFAULT_MAX_CHAIN, DEFAULT_MAX_PREFILL, Changes, export_bundle
from eagle3chat.engine.layout import GROUPS
from eagle3chat.engine.quantise import Coding
from eagle3chat.opening import Progress
from eagle3chat.wishes import flag

PATHS = ("target", "draft", "output_dir", "template")
VALUES = (
    "name",
    "chain",
    "max_chain",
    "max_prefill",
    "max_seq_len",
    "taps",
    "quantize_target",
    "group_size",
    "draft_bits",
)
FLAGS = ("backend", "target_model", *PATHS, *VALUES)
SWITCHES = ("quantize_draft", "share_draft_embedding", "copy_target", "refine", "requantize")


def export(args: argparse.Namespace) -> int:
    """Make a bundle and say where it is; the exit code.

    Raises:
        Eagle3Error: A source cannot be read or converted exactly, or the bundle cannot be written.
    """
    changes, share = _changes(args), bool(flag(args, "share_draft_embedding"))
    if share and flag(args, "own_embedding"):
        raise SettingError("A draft cannot both share the target's embedding and use its own.", "Leave one flag out.")
    progress = Progress(sys.stderr)
    remarks: list[str] = []
    draft = flag(args, "draft")
    try:
        path = export_bundle(
            args.target,
            draft or None,
            Path(os.path.expanduser(args.output_dir)),
            template=flag(args, "template"),
            chain=_given(args, "chain", DEFAULT_CHAIN if draft else 0),
            max_chain=_given(args, "max_chain", DEFAULT_MAX_CHAIN),
            max_prefill=_given(args, "max_prefill", DEFAULT_MAX_PREFILL),
            max_seq_len=flag(args, "max_seq_len"),
            taps=flag(args, "taps"),
            own_embedding=flag(args, "own_embedding"),
            share_embedding=share,
            changes=changes,
            copy_target=bool(flag(args, "copy_target")),
            model=flag(args, "target_model"),
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


def _changes(args: argparse.Namespace) -> Changes:
    """What is quantised."""
    wanted, group = flag(args, "quantize_target"), flag(args, "group_size")
    refine, bits = bool(flag(args, "refine")), flag(args, "draft_bits")
    if group is not None and group not in GROUPS:
        raise SettingError(f"Groups of {group} columns are not possible.", "Use --group-size 32, 64 or 128.")
    if group is not None and wanted is None:
        raise SettingError("--group-size is of a target that is quantised.", "Add --quantize-target int4 or int8.")
    if bits is not None and not flag(args, "quantize_draft"):
        raise SettingError("--draft-bits is of a draft that is quantised.", "Add --quantize-draft.")
    target = None if wanted is None else Coding(8 if wanted == "int8" else 4, group or GROUPS[0], refine)
    return Changes(
        target=target,
        draft_bits=(bits if bits is not None else 4) if flag(args, "quantize_draft") else 0,
        refine=refine,
        requantize=bool(flag(args, "requantize")),
    )


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
    words += [f"--{name.replace('_', '-')}" for name in SWITCHES if flag(args, name)]
    return shlex.join(words)


def _given(args: argparse.Namespace, name: str, default: int) -> int:
    value = flag(args, name)
    return default if value is None else int(value)
