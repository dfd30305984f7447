"""Breaking a line into rows by cell width, so that only its last row needs work when it grows.

The rule is the one that the toolkit uses for its own text (greedy, at spaces, long words folded), so that a
paragraph keeps its rows when it settles. One difference: a space after a folded word never gets a row of its own,
which would come and go as the word grows.
"""

from __future__ import annotations

import re

from rich.cells import cell_len, chop_cells

_WORD = re.compile(r"\s*\S+\s*")


def row_starts(text: str, width: int, start: int = 0) -> list[int]:
    """Offsets in `text` where its rows begin, from the row that begins at `start` on (`start` included).

    `start` must be the beginning of a row: rows before it never change when text is added at the end.
    """
    starts = [start]
    used = 0
    for match in _WORD.finditer(text, start):
        word = match[0]
        if used + cell_len(word.rstrip()) <= width:
            used += cell_len(word)
            continue
        at = match.start()
        if cell_len(word.rstrip()) > width:
            for part in chop_cells(word.rstrip(), width):
                if at > start:
                    starts.append(at)
                used = cell_len(part)
                at += len(part)
            used += cell_len(word) - cell_len(word.rstrip())
        else:
            if used:
                starts.append(at)
            used = cell_len(word)
    return starts
