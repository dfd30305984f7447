"""One round in words and figures: where it sits in the reply, each drafted token's fate, what the target considered.

Content for a width; knows no widget and no key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from textual.content import Content

from eagle3chat.engine.events import Burst, Round, Token
from eagle3chat.ui.clean import clean_line
from eagle3chat.ui.figures import number, plural
from eagle3chat.ui.glyphs import Glyphs
from eagle3chat.ui.widgets.lane import STYLES, spelled
from eagle3chat.ui.widgets.line import spread

TOKEN_COLUMN = 22  # cells; a token and its sign take up to 20
WIDE = 82  # cells, from which the verdict on the target's own token says whose it is
NARROW = 70  # cells, below which positions are left out
TINY = 56  # below which the verdict is: the signs tell it
FIGURES = 18  # cells of the two probabilities
SMALLEST = 0.005  # a probability below is told as less than a hundredth


def page(rounds: Sequence[Round], place: int, title: str, width: int, glyphs: Glyphs) -> list[Content]:
    """The lines about rounds[place] of a reply.

    Args:
        title: Which reply it is.
        width: Cells.
    """
    round_ = rounds[place]
    head = f"{title} {glyphs.dot} round {place + 1} of {len(rounds)}"
    lines = [spread(Content.styled(head, "bold"), Content.styled(times(round_, glyphs), "$quiet"), width), Content("")]
    lines += [in_the_text(rounds, place, width, glyphs), Content("")]
    if round_.burst is not None:
        return [*lines, *(Content(sentence) for sentence in of_burst(round_.burst))]
    lines += [row.truncate(width, ellipsis=True) for row in table(round_, width, glyphs)]
    lines += [Content(""), considered(round_, width, glyphs)]
    lines += [Content.styled(sentence, "") for sentence in sentences(round_, glyphs)]
    return lines


def times(round_: Round, glyphs: Glyphs) -> str:
    """Milliseconds of the round and, where they were measured, of its parts."""
    total = round_.seconds * 1000
    if round_.draft_seconds is None or round_.verify_seconds is None:
        return f"{total:.1f} ms"
    draft, verify = round_.draft_seconds * 1000, round_.verify_seconds * 1000
    host = max(0.0, total - draft - verify)
    return f" {glyphs.dot} ".join((f"draft {draft:.1f} ms", f"verify {verify:.1f} ms", f"host {host:.1f} ms"))


def in_the_text(rounds: Sequence[Round], place: int, width: int, glyphs: Glyphs) -> Content:
    """The round's tokens between the text before and after them, in one row."""
    before = clean_line("".join(r.text for r in rounds[max(0, place - 60) : place]))
    after = clean_line("".join(r.text for r in rounds[place + 1 : place + 30]))
    own = emitted(rounds[place], glyphs)
    room = max(0, width - own.cell_length - 2)
    left = room * 2 // 3 if after else room
    start = Content.styled(before, "$quiet")
    if start.cell_length > left:
        cut = before
        while cut and Content(cut).cell_length > left - 1:
            cut = cut[1:]
        start = Content.styled(glyphs.ellipsis[0] + cut, "$quiet")
    rest = Content.styled(after, "$quiet").truncate(max(0, room - start.cell_length), ellipsis=True)
    return Content.assemble(start, (glyphs.bar, "$emphasis"), own, rest)


def emitted(round_: Round, glyphs: Glyphs) -> Content:
    """What the round added to the reply, each token in the style of its kind."""
    if round_.burst is not None:
        return Content.styled(clean_line(round_.text), "bold")
    parts = [(clean_line(token.text), STYLES["accepted"]) for token in round_.drafted[: round_.accepted]]
    if round_.own is not None and round_.own_kind is not None:
        parts.append((clean_line(round_.own.text), STYLES[round_.own_kind]))
    return Content.assemble(*parts)


def table(round_: Round, width: int, glyphs: Glyphs) -> Iterator[Content]:
    """A row for each drafted token, and one for the target's own."""
    yield _row("position", Content.styled("token", "$quiet"), "draft p", "target p", "verdict", width, "$quiet")
    for place, token in enumerate(round_.drafted):
        kind = fate(round_, place)
        sign = {"accepted": "", "rejected": glyphs.rejected, "unreached": ""}[kind]
        text = f"({spelled(token, glyphs)})" if kind == "unreached" else sign + spelled(token, glyphs)
        target_p = None if kind == "unreached" else token.target_p
        shown = Content.styled(text, STYLES[kind])
        yield _row(str(round_.position + place), shown, share(token.draft_p), share(target_p), kind, width)
    if round_.own is not None and round_.own_kind is not None:
        kind = round_.own_kind
        sign = {"correction": glyphs.correction, "bonus": glyphs.bonus, "plain": glyphs.plain}[kind]
        shown = Content.styled(f"{sign} {spelled(round_.own, glyphs)}".strip(), STYLES[kind])
        at = str(round_.position + round_.accepted)
        verdict = f"{kind}: the target's own" if width >= WIDE else kind
        yield _row(at, shown, share(None), share(round_.own.target_p), verdict, width)


def _row(
    position: str, token: Content, draft_p: str, target_p: str, verdict: str, width: int, style: str = ""
) -> Content:
    """Columns as far as the width allows."""
    head = f"{position:<10}" if width >= NARROW else ""
    column = TOKEN_COLUMN if width >= TINY else max(1, width - FIGURES)
    gap = " " * max(1, column - token.cell_length)
    figures = f"{draft_p:>8}{target_p:>10}" + (f"   {verdict}" if width >= TINY else "")
    return Content.assemble((head, style), token, gap, (figures, style))


def fate(round_: Round, place: int) -> str:
    """What became of a drafted token."""
    if place < round_.accepted:
        return "accepted"
    return "rejected" if place == round_.accepted and round_.rejected is not None else "unreached"


def share(p: float | None) -> str:
    """A probability; what was not judged has none."""
    if p is None:
        return "-"
    return "< .01" if 0 < p < SMALLEST else f"{p:.2f}"


def considered(round_: Round, width: int, glyphs: Glyphs) -> Content:
    """The most probable tokens where the target's own one stands, as many as there is room for."""
    if not round_.considered:
        unknown = Content.styled("what else the target considered is not known", "$quiet")
        return unknown.truncate(width, ellipsis=True)
    own = None if round_.own is None else round_.own.id
    line = Content.styled("the target considered" if width >= TINY else "considered", "$quiet")
    for token in round_.considered:
        text = f"{spelled(token, glyphs)} {share(token.target_p)}"
        longer = Content.assemble(line, "   ", (text, "bold" if token.id == own else ""))
        if longer.cell_length > width:
            break
        line = longer
    return line


def sentences(round_: Round, glyphs: Glyphs) -> Iterator[str]:
    """Why the round ended as it did."""
    if round_.own is None:
        yield "A stop or a limit ended the reply before the target's own token."
    elif round_.own_kind == "bonus":
        yield "All drafted tokens were accepted, so the same pass gives one more."
    elif round_.own_kind == "plain":
        yield "Nothing was drafted: plain decoding."
    if round_.own is not None:
        yield _choice(round_, round_.own, glyphs)
    if round_.why:
        yield f"The chain finds its length, here {round_.chain}: {round_.why}."


def of_burst(burst: Burst) -> Iterator[str]:
    """What is known of a piece of text that a server sent, and what is not."""
    count = "a number of tokens that it did not tell" if burst.tokens is None else plural(burst.tokens, "token")
    yield f"The server sent this in one piece: {count}."
    yield "Which of them were drafted, what was rejected and what else was considered is not visible through a server."


def _choice(round_: Round, own: Token, glyphs: Glyphs) -> str:
    """How the target came to its own token."""
    name, at = spelled(own, glyphs), round_.position + round_.accepted
    if not any(map(str.isalnum, name)):
        name = f'"{name}"'  # its points would be read as the sentence's
    if round_.temperature == 0:
        return f"Greedy: {name} is the target's most probable token at position {at}."
    drew = f"With temperature {number(round_.temperature)} and the noise of position {at} the target drew {name}"
    top = round_.considered[0] if round_.considered else None
    if top is not None and top.id != own.id:
        drew += f", though {spelled(top, glyphs)} was more probable"
    return f"{drew}." if round_.rejected is None else f"{drew}: a draw, so not always a mistake of the draft."


def find(rounds: Sequence[Round], text: str, start: int) -> int | None:
    """The first round from `start` on, round the end, with a token (drafted or said) that holds `text`."""
    wanted = text.casefold()
    for step in range(len(rounds)):
        place = (start + step) % len(rounds)
        round_ = rounds[place]
        own = () if round_.own is None else (round_.own,)
        if any(wanted in token.text.casefold() for token in (*round_.drafted, *own)):
            return place
    return None
