"""The signs that the lane and the meter are drawn with, once for terminals with Unicode and once for the rest.

All are one cell wide. Knows no colour.
"""

from __future__ import annotations

import locale
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Glyphs:
    """One set of signs."""

    levels: str = "▁▂▃▄▅▆▇█"  # a bar from 0 to 1
    rejected: str = "✗"
    correction: str = "→"
    bonus: str = "+"
    plain: str = " "
    prompt: str = "›"
    bar: str = "▌"
    rule: str = "─"
    dot: str = "·"
    undrafted: str = "·"  # in a row of bars: there was none to be had
    full: str = "━"
    empty: str = "─"
    ellipsis: str = "…"
    shut: str = "▸"
    open: str = "▾"
    ascii_only: bool = False

    def level(self, share: float) -> str:
        """The bar for a share of 0..1; anything above 0 is taller than the lowest."""
        top = len(self.levels) - 1
        return self.levels[max(1 if share > 0 else 0, min(top, round(share * top)))]

    def progress(self, share: float, width: int) -> tuple[str, str]:
        """The done and the open part of a bar of `width` cells."""
        filled = round(max(0.0, min(1.0, share)) * width)
        return self.full * filled, self.empty * (width - filled)


UNICODE = Glyphs()
ASCII = Glyphs("_.-=*#@M", "x", ">", "+", " ", ">", "|", "-", "-", ":", "=", "-", "...", "+", "-", True)


def pick_glyphs(environ: Mapping[str, str]) -> Glyphs:
    """ASCII where the locale cannot carry Unicode or EAGLE3CHAT_ASCII is set."""
    if environ.get("EAGLE3CHAT_ASCII"):
        return ASCII
    encoding = locale.getpreferredencoding(False).lower().replace("-", "")
    return UNICODE if encoding in ("utf8", "cp65001") else ASCII
