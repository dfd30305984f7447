"""Rows of a growing line equal the rows of the whole line, and those of the toolkit."""

from hypothesis import given
from hypothesis import strategies as st
from rich._wrap import divide_line

from eagle3chat.ui.wrap import row_starts

TEXT = st.text(alphabet="ab c字😀\u0301-", max_size=80)


WORDS = st.lists(st.text(alphabet="abc字😀\u0301-", min_size=1, max_size=2), max_size=30).map("  ".join)


@given(WORDS, st.integers(5, 30))
def test_as_the_toolkit_breaks(text, width):
    assert row_starts(text, width) == [0, *divide_line(text, width)]


@given(TEXT, st.integers(4, 30), st.sets(st.integers(0, 79)))
def test_growing_is_the_same_as_whole(text, width, cuts):
    rows, shown = [0], ""
    for cut in [*sorted(cuts), len(text)]:
        shown = text[:cut] if cut <= len(text) else text
        rows = [*rows[:-1], *row_starts(shown, width, rows[-1])]
    assert rows == row_starts(text, width)
