"""Blocks end where they should, however the text arrives, and only harmless ones become Markdown."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3chat.ui.blocks import Splitter, safe_tokens

DOCUMENT = """First paragraph
with a second line.

# Heading
Text right after it.

- one
- two

  more of two
- three

After the list.

```python
x = 1

# not a heading
```
Tail right after the fence.

1. a
2. b

| a | b |
|---|---|
| 1 | 2 |

~~~
tilde
~~~

last"""

BLOCKS = [
    "First paragraph\nwith a second line.\n\n",
    "# Heading\n",
    "Text right after it.\n\n",
    "- one\n- two\n\n  more of two\n- three\n\n",
    "After the list.\n\n",
    "```python\nx = 1\n\n# not a heading\n```\n",
    "Tail right after the fence.\n\n",
    "1. a\n2. b\n\n",
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n",
    "~~~\ntilde\n~~~\n\n",
]


def split(pieces):
    splitter = Splitter()
    return [block for piece in pieces for block in splitter.feed(piece)], splitter.open


@given(st.sets(st.integers(1, len(DOCUMENT) - 1)))
def test_the_same_blocks_for_every_cut(cuts):
    edges = [0, *sorted(cuts), len(DOCUMENT)]
    blocks, rest = split(DOCUMENT[a:b] for a, b in itertools.pairwise(edges))
    assert blocks == BLOCKS
    assert rest == "last"


@given(st.lists(st.text(alphabet="ab #-*`1.\n>|~ ", max_size=12), max_size=20))
def test_no_character_is_lost(pieces):
    blocks, rest = split(pieces)
    assert "".join(blocks) + rest == "".join(pieces)


def test_a_paragraph_settles_when_the_next_one_begins():
    assert split(["One.\n\n"]) == ([], "One.\n\n")
    assert split(["One.\n\n", "T"]) == (["One.\n\n"], "T")
    assert split(["- One.\n\n", "1"]) == ([], "- One.\n\n1")
    assert split(["- One.\n\n", "1", "0 more"]) == (["- One.\n\n"], "10 more")


@pytest.mark.parametrize(
    "block",
    [
        "Hello **world**, *it* is `a*b`.\n",
        "List<String> x = a & b;\n",
        "Inline \\(x^2\\) and $x_1$ and \\frac{a}{b}\n",
        "a * b * c\n",
        "snake_case_name\n",
        "&amp; <b>x</b> [a](http://b) https://x.org/a_b\n",
        "```python\nx = '<b>'\n```\n",
        "| a | b |\n|:--|--:|\n| 1 | 2 |\n",
        "> quoted\n",
        "3. three\n4. four\n",
        "roses\nviolets\n",
    ],
)
def test_safe_as_markdown(block):
    assert safe_tokens(block) is not None


@pytest.mark.parametrize(
    "block",
    [
        "2*3*4 = 24\n",
        "__init__ and __name__\n",
        "a   b   c\nd   e   f\n",
        "\\*not emphasis\\*\n",
        "2**3**4\n",
        "\n\n",
    ],
)
def test_plain_because_something_would_be_lost(block):
    assert safe_tokens(block) is None
