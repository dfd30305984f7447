"""Nothing that comes through `clean` can drive a terminal."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3chat.ui.clean import clean, clean_draft, clean_line, clean_token

HARMFUL = [chr(c) for c in (*range(0x20), *range(0x7F, 0xA0)) if chr(c) not in "\n"]
BIDI = [chr(c) for c in (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C)]


@pytest.mark.parametrize("char", HARMFUL + BIDI + ["\ufeff", "\u200b", "\U000e0041", "\ud800"])
def test_no_control_passes(char):
    for cleaned in (
        clean(f"a{char}b"),
        clean_line(f"a{char}b"),
        clean_token(f"a{char}b"),
        clean_token(f"a{char}b", True),
    ):
        assert char not in cleaned
        assert cleaned[0] == "a"
        assert cleaned[-1] == "b"


def test_known_sequences():
    assert clean("\x1b[2J") == "␛[2J"
    assert clean("\x1b]0;title\x07") == "␛]0;title␇"
    assert clean("\x9b31m") == "\ufffd31m"
    assert clean("a\r\nb\tc\x7f") == "a \nb    c␡"
    assert clean_line("a\nb\tc") == "a b c"
    assert clean_token(" the\n") == "·the⏎"
    assert clean_token(" the\n", ascii_only=True) == "_the\\n"
    assert clean_draft("a\r\nb\rc\x1b[2J\td") == "a\nb\nc[2J\td"


@given(st.text(), st.text())
def test_pieces_and_whole_agree(a, b):
    assert clean(a) + clean(b) == clean(a + b)


@given(st.text())
def test_only_printable_categories_remain(text):
    kept = {unicodedata.category(c) for c in clean(text) if c not in "\n\u200c\u200d"}
    assert not kept & {"Cc", "Cs", "Zl", "Zp"}
    assert not any(
        unicodedata.bidirectional(c) in ("LRO", "RLO", "LRE", "RLE", "PDF", "LRI", "RLI", "FSI", "PDI")
        for c in clean(text)
    )


@given(st.text(alphabet=st.characters(exclude_categories=["C", "Zl", "Zp", "Mn"])))
def test_plain_text_is_left_alone(text):
    plain = text.replace("\u3164", "").replace("\uffa0", "").replace("\u115f", "").replace("\u1160", "")
    assert clean(plain) == plain
