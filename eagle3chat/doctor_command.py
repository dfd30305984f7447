"""`eagle3chat doctor`: versions, devices, memory, kernels, terminal and directories; what is off, and why."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterable, Iterator

from eagle3chat.doctor import Finding, examine
from eagle3chat.ui.clean import clean_line

MARKS = {"ok": " ", "off": "-", "bad": "!"}
BAD = 1


def doctor(args: argparse.Namespace) -> int:
    """Print the table, or with --json one document; 1 when something will not work, else 0."""
    findings = list(examine())
    if args.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings]))
    else:
        for line in table(findings):
            print(clean_line(line))
    return BAD if any(finding.state == "bad" for finding in findings) else 0


def table(findings: Iterable[Finding]) -> Iterator[str]:
    """Lines for people: a mark, what was asked, the answer, why."""
    counts = {"ok": 0, "off": 0, "bad": 0}
    area = ""
    for finding in findings:
        if finding.area != area:
            area = finding.area
            yield f"{area}"
        counts[finding.state] += 1
        why = f" ({finding.why})" if finding.why else ""
        yield f"{MARKS[finding.state]} {finding.name:16} {finding.value}{why}"
    yield f"{counts['ok']} in order, {counts['off']} off (-), {counts['bad']} will not work (!)"
