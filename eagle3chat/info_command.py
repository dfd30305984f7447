"""`eagle3chat info`: what is in a bundle and what memory a context will need, before anything is loaded.

Knows words and bundles; the counts come from `engine.anatomy`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from eagle3chat.engine.anatomy import Anatomy, Part, dissect
from eagle3chat.engine.bundle import Bundle, open_bundle
from eagle3chat.engine.errors import SettingError
from eagle3chat.opening import bundle_of
from eagle3chat.ui.clean import clean_line
from eagle3chat.ui.figures import size
from eagle3chat.wishes import flag, read_wishes

THOUSAND = 1000  # positions that a cache's cost is told for


def info(args: argparse.Namespace) -> int:
    """Print the table, or with --json one document; the exit code.

    Raises:
        BundleError: The directory is missing, damaged or inconsistent.
        SettingError: The context is out of range.
    """
    wishes = read_wishes(args)
    directory = flag(args, "directory")
    path = Path(directory) if directory else Path(bundle_of(wishes, sys.stderr).options.bundle)
    bundle = open_bundle(path)
    asked = flag(args, "context")
    context = bundle.manifest.max_seq_len if asked is None else asked
    if not 1 <= context <= bundle.manifest.max_seq_len:
        raise SettingError(
            f"A context of {context} positions is not possible here.", f"Use 1 to {bundle.manifest.max_seq_len}."
        )
    anatomy = dissect(bundle)
    if flag(args, "json"):
        print(document(bundle, anatomy, context))
        return 0
    for line in table(bundle, anatomy, context):
        print(clean_line(line))
    return 0


def table(bundle: Bundle, anatomy: Anatomy, context: int) -> Iterator[str]:
    """The lines for people."""
    manifest = bundle.manifest
    yield f"target    {manifest.name}, {manifest.family}, {_count(anatomy.parameters('target'))} parameters"
    yield from _parts(anatomy, "target")
    draft = manifest.draft
    if draft is None:
        yield "draft     none: plain decoding only"
    else:
        taps = ", ".join(map(str, draft.taps))
        words = f"{draft.draft_vocab_size:,} of {manifest.target.vocab_size:,} tokens"
        yield f"draft     {manifest.draft_name}, {_count(anatomy.parameters('draft'))} parameters, {words}"
        yield from _parts(anatomy, "draft")
        yield f"taps      after layers {taps} of {manifest.target.num_layers}"
        yield f"chain     {manifest.default_chain} at first, {manifest.max_chain} at most"
    yield f"context   up to {manifest.max_seq_len:,} positions, prompt chunks of {manifest.max_prefill}"
    yield f"template  {manifest.template}, stop ids {', '.join(map(str, manifest.stop_ids)) or 'none'}"
    yield from _memory(anatomy, context)
    for source in manifest.sources:
        yield f"from      {source.role}: {source.name}, {size(source.size)}, sha256 {source.sha256[:16]}"
    yield f"made      {manifest.created} by eagle3chat {manifest.version}"
    yield f"kernels   {_kernels()}"


def _parts(anatomy: Anatomy, model: str) -> Iterator[str]:
    own = sorted((part for part in anatomy.parts if part.model == model), key=lambda part: -part.size)
    for part in own:
        bits = f"{part.bits:.2f} bits each" if part.parameters else ""
        count = _count(part.parameters) if part.parameters else ""
        yield f"          {part.name:10} {part.precision:6} {count:>8} {size(part.size):>9}  {bits}".rstrip()
    yield f"          {'all':10} {'':6} {_count(anatomy.parameters(model)):>8} {size(_total(own)):>9}"


def _memory(anatomy: Anatomy, context: int) -> Iterator[str]:
    """Weights as stored, and caches in two bytes a number."""
    thousand = anatomy.cache_bytes(THOUSAND, "bfloat16")
    yield f"cache     {size(thousand[0])} target and {size(thousand[1])} draft for {THOUSAND:,} positions in bfloat16"
    weights = anatomy.weight_bytes("target") + anatomy.weight_bytes("draft")
    caches = sum(anatomy.cache_bytes(context, "bfloat16"))
    line = f"memory    {size(weights)} of weights as stored + {size(caches)} of caches at {context:,} positions"
    available = available_bytes()
    if available is not None:
        fits = "fits into" if weights + caches < available else "does not fit into"
        line += f"; {fits} the {size(available)} that are free here"
    yield line


def available_bytes() -> int | None:
    """Memory that a program could take now; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _kernels() -> str:
    """The compiled CPU kernels that serve here."""
    from eagle3chat.kernels.cpu import describe

    return describe()


def _total(parts: list[Part]) -> int:
    return sum(part.size for part in parts)


def _count(number: int) -> str:
    """`134.5 M`."""
    for unit, name in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= unit:
            return f"{number / unit:.1f} {name}"
    return str(number)


def document(bundle: Bundle, anatomy: Anatomy, context: int) -> str:
    """The same for programs."""
    manifest = bundle.manifest
    value = {
        "path": str(bundle.path),
        "manifest": dataclasses.asdict(manifest),
        "parts": [dataclasses.asdict(part) for part in anatomy.parts],
        "parameters": {model: anatomy.parameters(model) for model in ("target", "draft")},
        "weight_bytes": {model: anatomy.weight_bytes(model) for model in ("target", "draft")},
        "context": context,
        "cache_bytes": {
            dtype: dict(zip(("target", "draft"), anatomy.cache_bytes(context, dtype), strict=True))
            for dtype in ("float32", "bfloat16")
        },
        "available_bytes": available_bytes(),
        "kernels": _kernels(),
    }
    return json.dumps(value, separators=(",", ":"))
