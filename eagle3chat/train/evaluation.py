"""What is evaluated and what was found: rounds by way of drafting, temperature and kind, and their table.

Knows no tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from eagle3chat.bench import Case
from eagle3chat.train.rounds import Rounds

ARGMAX, REJECTION = "argmax", "rejection sampling"


@dataclass(frozen=True, slots=True)
class Question:
    """What is evaluated."""

    cases: tuple[Case, ...]
    chain: int
    temperatures: tuple[float, ...]
    sharpness: tuple[float, ...]
    top_p: float
    seed: int
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class Finding:
    """The rounds of one reply under one way of drafting.

    Args:
        way: `ARGMAX`, `REJECTION` or what `coupled` names.
    """

    case: str
    kind: str
    temperature: float
    way: str
    rounds: Rounds


def coupled(sharpness: float) -> str:
    """The name of noise-coupled drafting."""
    return f"coupled, sharpness {sharpness:g}"


def total(findings: Iterable[Finding], chain: int) -> Rounds:
    """All rounds, added up."""
    whole = Rounds.none(chain)
    for finding in findings:
        whole = whole + finding.rounds
    return whole


def table(findings: Sequence[Finding], chain: int) -> list[str]:
    """Lines for people: a block a temperature, a row a way; then tau by kind."""
    lines: list[str] = []
    for temperature in dict.fromkeys(f.temperature for f in findings):
        here = [f for f in findings if f.temperature == temperature]
        lines += [f"temperature {temperature:g}", f"  {'way':24} {'tau':>6}  accepted of judged, by place"]
        ways = dict.fromkeys(f.way for f in here)
        for way in ways:
            rounds = total((f for f in here if f.way == way), chain)
            places = "  ".join(f"{p:.3f}" for p in rounds.acceptance)
            lines.append(f"  {way:24} {rounds.tau:6.3f}  {places}")
        lines.append(f"  {'tau by kind (prompts)':24}")
        for kind in sorted({f.kind for f in here}):
            of_kind = [f for f in here if f.kind == kind]
            count = len({f.case for f in of_kind})
            taus = ", ".join(f"{w} {total((f for f in of_kind if f.way == w), chain).tau:.2f}" for w in ways)
            lines.append(f"    {kind} ({count}): {taus}")
        lines.append("")
    return lines


def document(findings: Sequence[Finding], chain: int) -> list[dict[str, object]]:
    """The same for programs: an object a temperature, way and kind; the kind "all" is all of them."""
    made: list[dict[str, object]] = []
    groups = dict.fromkeys((f.temperature, f.way) for f in findings)
    for temperature, way in groups:
        here = [f for f in findings if (f.temperature, f.way) == (temperature, way)]
        for kind in ("all", *sorted({f.kind for f in here})):
            rounds = total((f for f in here if kind in ("all", f.kind)), chain)
            made.append(
                {"temperature": temperature, "way": way, "kind": kind, "tau": round(rounds.tau, 6)}
                | {"acceptance": [round(p, 6) for p in rounds.acceptance]}
                | dataclasses.asdict(rounds)
            )
    return made
