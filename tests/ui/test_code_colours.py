"""Colours of code, slice by slice."""

import pytest

from eagle3chat.ui.code_colours import LONGEST_LINE, CodeColours

CODE = 'def f(x):\n    """Two\n    lines."""\n    return x + 1  # one\n\n\nprint(f(2))'


def all_spans(code, language, characters):
    colours = CodeColours(code, language, ansi=False, dark=True)
    found = {}
    steps = 0
    while not colours.over:
        for line, spans in colours.step(characters).items():
            found.setdefault(line, []).extend(spans)
        steps += 1
    return found, steps


def test_slices_give_what_one_step_gives():
    whole, once = all_spans(CODE, "python", 10**6)
    sliced, often = all_spans(CODE, "python", 10)
    assert sliced == whole
    assert (once, often > 5) == (1, True)


def test_spans_stand_on_their_lines():
    found, _ = all_spans(CODE, "python", 10**6)
    lines = CODE.split("\n")
    words = {(n, lines[n][s.start : s.end]) for n, spans in found.items() for s in spans}
    assert {
        (0, "def"),
        (0, "f"),
        (1, '"""Two'),
        (2, '    lines."""'),
        (3, "return"),
        (3, "# one"),
        (6, "print"),
    } <= words
    assert all(0 <= s.start < s.end <= len(lines[n]) for n, spans in found.items() for s in spans)


@pytest.mark.parametrize(("code", "language"), [(CODE, ""), (CODE, "no such"), ("x" * (LONGEST_LINE + 1), "python")])
def test_code_without_colours(code, language):
    assert all_spans(code, language, 100)[0] == {}
