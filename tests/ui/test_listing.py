"""Lists as lines that hang under their bullets."""

import pytest

from eagle3chat.ui.blocks import parser
from eagle3chat.ui.listing import entries


def lines(block):
    found = entries(parser().parse(block))
    return None if found is None else [entry.lead + (entry.inline.content if entry.inline else "") for entry in found]


@pytest.mark.parametrize(
    ("block", "shown"),
    [
        ("- a\n- b\n", ["• a", "• b"]),
        ("* a\n  - b\n    1. c\n- d\n", ["• a", "  • b", "    1. c"]),
        ("9. nine\n10. ten\n", [" 9. nine", "10. ten"]),
        ("1. a\n1. b\n7) c\n", ["1. a", "1. b"]),
        ("- a\n\n- b\n\n  more\n", ["• a", "", "• b", "", "  more"]),
        ("- a\n\n  - in\n  - in\n\n- b\n", ["• a", "", "  • in", "  • in", "", "• b"]),
        ("- - a\n  - b\n", ["• ", "  • a", "  • b"]),
        ("-\n- b\n", ["• ", "• b"]),
    ],
)
def test_lines(block, shown):
    assert lines(block)[: len(shown)] == shown


@pytest.mark.parametrize("block", ["- a\n  ```\n  code\n  ```\n", "1. a\n\n   > quote\n", "text\n", "- # head\n"])
def test_what_is_no_list_of_paragraphs(block):
    assert lines(block) is None
