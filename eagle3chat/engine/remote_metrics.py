"""Counters of speculation in a server's metrics text (Prometheus exposition), and what they say between two readings.

Counters only grow; a restart zeroes them. They are those of the whole server, over its engines. Each name is matched
as a whole, since there are timestamps (`_created`) beside every counter. Knows no HTTP.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from eagle3chat.engine.events import Told
from eagle3chat.engine.remote_speculation import NOTHING, drafts

_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Sample:
    """One line."""

    name: str
    model: str  # its model_name; empty: it has none
    place: int | None  # its position
    value: float


@dataclass(frozen=True, slots=True)
class Counters:
    """Drafting of one model since the server started."""

    rounds: int
    drafted: int
    accepted: int
    accepted_at: tuple[int, ...]


def samples(text: str) -> Iterator[Sample]:
    """The lines that hold a finite number."""
    for line in text.splitlines():
        match = None if line.startswith("#") else _LINE.match(line)
        if match is None:
            continue
        labels = dict(_LABEL.findall(match[2] or ""))
        place = labels.get("position", "")
        try:
            value = float(match[3])
        except ValueError:
            continue
        if abs(value) < float("inf"):
            yield Sample(match[1], labels.get("model_name", ""), int(place) if place.isdecimal() else None, value)


def counters(text: str, prefix: str, model: str) -> Counters | None:
    """The counters of a model; None: there are none, or not of this one among several.

    Args:
        prefix: Of their names, such as `vllm:`.
    """
    found = list(_of_model([s for s in samples(text) if s.name.startswith(f"{prefix}spec_decode_")], model))
    sums: dict[str, int] = defaultdict(int)
    at: dict[int, int] = defaultdict(int)
    for sample in found:
        name = sample.name.removeprefix(prefix).removesuffix("_total")
        if name == "spec_decode_num_accepted_tokens_per_pos" and sample.place is not None:
            at[sample.place] += int(sample.value)
        else:
            sums[name] += int(sample.value)
    if "spec_decode_num_drafts" not in sums:
        return None
    return Counters(
        sums["spec_decode_num_drafts"],
        sums["spec_decode_num_draft_tokens"],
        sums["spec_decode_num_accepted_tokens"],
        tuple(at[place] for place in range(max(at, default=-1) + 1)),
    )


def gauge(text: str, name: str, model: str) -> float | None:
    """The value of a gauge; None: there is none, or not of this model, or of several engines."""
    found = list(_of_model([s for s in samples(text) if s.name == name], model))
    return found[0].value if len(found) == 1 else None


def since(before: Counters | None, after: Counters | None, source: str) -> Told:
    """What was drafted between two readings; nothing is known where one is missing or the server began anew."""
    if before is None or after is None:
        return NOTHING
    rounds, drafted = after.rounds - before.rounds, after.drafted - before.drafted
    accepted = after.accepted - before.accepted
    old = before.accepted_at + (0,) * (len(after.accepted_at) - len(before.accepted_at))
    at = tuple(b - a for a, b in zip(old, after.accepted_at, strict=False))
    if min(rounds, drafted, accepted, *at, 0) < 0 or len(before.accepted_at) > len(after.accepted_at):
        return NOTHING
    return drafts(source, rounds=rounds, drafted=drafted, accepted=accepted, accepted_at=at or None, shared=True)


def _of_model(found: list[Sample], model: str) -> list[Sample]:
    names = {sample.model for sample in found}
    if model in names:
        return [sample for sample in found if sample.model == model]
    return found if len(names) == 1 else []
