"""What `doctor` finds out: one value a question, and all questions in order.

Nothing here asks the network or loads a model; a library that crashes when it is imported crashes a process of its
own. Knows no output format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "off", "bad"]


@dataclass(frozen=True, slots=True)
class Finding:
    """An answer."""

    area: str  # one word, several findings share it
    name: str
    value: str
    state: State = "ok"  # "off": something that could be is not, and nothing breaks; "bad": something will not work
    why: str = ""  # it is off or bad, and what helps


def examine() -> Iterator[Finding]:
    """All findings, area by area. Takes some seconds: libraries are imported in processes of their own."""
    from eagle3chat.doctor_libraries import libraries
    from eagle3chat.doctor_machine import kernels, machine
    from eagle3chat.doctor_places import places
    from eagle3chat.doctor_terminal import terminal

    areas: tuple[Callable[[], Iterator[Finding]], ...] = (machine, libraries, kernels, terminal, places)
    for area in areas:
        yield from area()
