"""The meter: controls, mean emitted length, a sparkline, acceptance by place, speed. One row.

The sparkline shows accepted tokens of each round on a scale from 0 to the longest chain in use: K, or what the pair
can draft where the chain finds its length. It depends on no round but a longer one, so equal bars are equal lengths.
A round without a draft has a sign of its own. Acceptance by place is conditional: accepted of judged, which is the
quality of the draft there.
"""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from eagle3chat.engine.events import Info
from eagle3chat.engine.requests import Controls
from eagle3chat.ui.figures import chain_state, number, plural
from eagle3chat.ui.glyphs import Glyphs
from eagle3chat.ui.tally import Tally
from eagle3chat.ui.widgets.line import Line

AUTO_PLACES = 4  # of a chain that finds its length


class Meter(Line):
    """What the rounds of the reply add up to."""

    def __init__(self, glyphs: Glyphs, controls: Controls) -> None:
        super().__init__()
        self._glyphs = glyphs
        self._controls = controls
        self._info: Info | None = None
        self._tally = Tally()
        self._slow = 0.0  # rounds a second that are shown

    def show_controls(self, controls: Controls, info: Info | None) -> None:
        """Chain, temperature and seed as they are now."""
        self._controls, self._info = controls, info
        self.refresh()

    def show_tally(self, tally: Tally) -> None:
        """Figures of the reply; kept until the next one begins."""
        self._tally = tally
        self.refresh()

    def show_slow(self, rate: float) -> None:
        """Slow motion, in rounds a second; 0: none."""
        self._slow = rate
        self.refresh()

    def line(self, width: int) -> Content:
        """The groups that fit, on a rule. What goes first: the reason of a chain that finds its length, filters and the
        count of drafts, seed and half of the sparkline, numbers of the bars, bars."""
        for detail in range(7, -1, -1):
            groups = self._groups(detail)
            if sum(group.cell_length + 4 for group in groups) <= width - 1:
                return self._on_rule(groups, width)
        return Content("  ").join([Content(""), *groups])[1:]

    def _groups(self, detail: int) -> list[Content]:
        tally = self._tally
        groups = [self._settings(detail)]
        if tally.bursts or tally.told is not None:
            groups += self._server(detail)
        elif tally.rounds:
            tau = f"tau {tally.tau:.2f}"
            spark = self._sparkline(20 if detail > 4 else 8) if detail > 1 else ""
            scale = f" 0-{self._longest}" if spark and detail > 5 and self._longest else ""
            lengths = (f" {spark}" if spark else "", "$spec-accepted")
            groups.append(Content.assemble(tau, lengths, (scale, "$quiet")))
            if detail > 2 and (bars := self._bars(tally.conditional[: self._places()], numbers=detail > 3)).plain:
                groups.append(bars)
            if detail > 5 and (tested := tally.accepted + tally.rejected):
                groups.append(Content(f"{tally.accepted} of {tested} tested"))
            groups.append(Content(f"{tally.tokens_per_second:.0f} tok/s"))
        return groups

    def _server(self, detail: int) -> list[Content]:
        """Of a reply that a server decodes: the sizes of its pieces; at its end what the server tells."""
        tally, told = self._tally, self._tally.told
        spark = ""
        if detail > 1 and not tally.uncounted:
            sizes = [size for size, _ in tally.recent][-(20 if detail > 4 else 8) :]
            spark = "".join(self._glyphs.level(size / max(tally.largest, 1)) for size in sizes)
        head = plural(tally.bursts, "piece") if told is None else "tau not known"
        if told is not None and told.tau is not None:
            head = f"tau {told.tau:.2f}"
        groups = [Content.assemble((head, ""), (f" {spark}" if spark else "", "$spec-accepted"))]
        if told is not None and detail > 2 and told.conditional:
            groups.append(self._bars(told.conditional, numbers=detail > 3))
        if not tally.uncounted and tally.seconds > 0:
            groups.append(Content(f"{tally.tokens_per_second:.0f} tok/s"))
        return groups

    def _settings(self, detail: int) -> Content:
        sampling = self._controls.sampling
        state = chain_state(self._info, self._controls, self._tally.chain)
        if detail > 6 and self._controls.auto and self._tally.why:
            state += f" ({self._tally.why})"
        parts = [state, f"T {number(sampling.temperature)}"]
        if self._slow:
            parts.insert(0, f"SLOW {number(self._slow)} rounds/s")
        if detail > 5:
            if sampling.top_k:
                parts.append(f"top-k {sampling.top_k}")
            if sampling.top_p < 1:
                parts.append(f"top-p {number(sampling.top_p)}")
            if sampling.min_p:
                parts.append(f"min-p {number(sampling.min_p)}")
            parts += [f"{kind} {number(value)}" for kind, value in sampling.penalties]
        if detail > 4:
            parts.append(f"seed {sampling.seed}")
        settings = Content("  ".join(parts))
        if self._info is not None and self._info.fixed_chain:  # it can be seen, not set
            at = settings.plain.index(state)
            settings = settings.stylize("$quiet", at, at + len(state))
        return settings

    def _sparkline(self, count: int) -> str:
        recent, glyphs = list(self._tally.recent)[-count:], self._glyphs
        longest = max(1, self._longest)
        return "".join(glyphs.level(took / longest) if drafted else glyphs.undrafted for took, drafted in recent)

    @property
    def _longest(self) -> int:
        """The longest chain in use: a bar of that many accepted tokens is full."""
        most = self._info.max_chain if self._controls.auto and self._info is not None else self._controls.chain
        return max(most, self._tally.longest)

    def _bars(self, shares: Sequence[float | None], numbers: bool) -> Content:
        parts = []
        for place, share in enumerate(shares, start=1):
            if share is None:
                continue
            parts.append(Content.assemble((f"{place} ", "$quiet"), (self._glyphs.level(share), "$spec-accepted")))
            if numbers:
                parts[-1] += Content.styled(f" {share:.2f}".replace(" 0.", " ."), "")
        return Content("  " if numbers else " ").join(parts)

    def _places(self) -> int:
        """Places of the chain that have a bar."""
        return AUTO_PLACES if self._controls.auto else max(1, self._controls.chain)

    def _on_rule(self, groups: list[Content], width: int) -> Content:
        rule = self._glyphs.rule
        line = Content.styled(f"{rule} ", "$hairline")
        for place, group in enumerate(groups):
            line += group
            if place < len(groups) - 1:
                line += Content.styled(f" {rule * 2} ", "$hairline")
        rest = width - line.cell_length - 1
        return line + Content.styled(" " + rule * max(0, rest), "$hairline")
