"""What ends a reply, and where its text is cut."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import KINDS, byte_level, tokenizer_of

from eagle3chat.engine.errors import SettingError
from eagle3chat.engine.text import Codec, ReplyText, Stops, Taken

CODEC = Codec(byte_level())
END = CODEC.id_of("<|im_end|>") or 0
EOS = CODEC.id_of("<|endoftext|>") or 0


def letters(text: str) -> list[int]:
    """One token a byte."""
    singles = {CODEC.token_bytes(id): id for id in range(CODEC.vocab_size) if len(CODEC.token_bytes(id)) == 1}
    return [singles[bytes([byte])] for byte in text.encode()]


def run(portions: Sequence[Sequence[int]], stops: Stops) -> tuple[str, int, bool, str]:
    """The whole text, tokens kept, and how the reply ended."""
    reply = ReplyText(CODEC, stops)
    text, kept, last = "", 0, Taken(0, "", False, "")
    for portion in portions:
        last = reply.take(portion)
        text, kept = text + last.text, kept + last.kept
        if last.ended:
            break
    return text + reply.rest(), kept, last.ended, last.stop


def naive_end(text: str, strings: Sequence[str]) -> tuple[int, str] | None:
    """Where a text of one character a token is cut, and by what: the slow truth."""
    for end in range(1, len(text) + 1):
        ended = [stop for stop in strings if text[:end].endswith(stop)]
        if ended:
            longest = max(ended, key=len)
            return end - len(longest), longest
    return None


@pytest.mark.parametrize("place", range(4))
def test_a_stop_token_ends_the_reply_at_every_place_of_a_round(place: int) -> None:
    tokens = letters("abc")
    offered = [*tokens[:place], END, *tokens[place:], EOS]
    taken = ReplyText(CODEC, Stops(frozenset({END, EOS}))).take(offered)
    assert taken == Taken(place + 1, "abc"[:place], True, "<|im_end|>")


def test_the_earliest_token_wins_between_a_stop_token_and_a_stop_string() -> None:
    stops = Stops(frozenset({END}), ("bc",))
    assert run([[*letters("abc"), END]], stops) == ("a", 3, True, "bc")
    assert run([[*letters("ab"), END, *letters("c")]], stops) == ("ab", 3, True, "<|im_end|>")
    assert run([[*letters("ab")], [END]], stops) == ("ab", 3, True, "<|im_end|>")


def test_held_back_text_is_given_when_a_stop_token_ends_the_reply() -> None:
    reply = ReplyText(CODEC, Stops(frozenset({END}), ("stop here",)))
    assert reply.take(letters("go stop he")).text == "go "
    taken = reply.take([END])
    assert taken == Taken(1, "stop he", True, "<|im_end|>")
    assert reply.rest() == ""


def test_held_back_text_is_given_at_the_length_limit_and_only_once() -> None:
    reply = ReplyText(CODEC, Stops(strings=("stop",)))
    assert reply.take(letters("a sto")).text == "a "
    assert reply.rest() == "sto"
    assert reply.rest() == ""


def test_a_character_cut_by_the_end_becomes_one_replacement() -> None:
    first_three = letters("😀")[:3]
    assert run([first_three], Stops()) == ("\ufffd", 3, False, "")
    assert run([[*first_three, END]], Stops(frozenset({END}))) == ("\ufffd", 4, True, "<|im_end|>")


@pytest.mark.parametrize("cut", range(8))
def test_a_stop_string_is_found_across_portions(cut: int) -> None:
    tokens = letters("ab\n\nX:cd")
    assert run([tokens[:cut], tokens[cut:]], Stops(strings=("\n\nX:",))) == ("ab", 6, True, "\n\nX:")


def test_a_stop_string_inside_one_token_cuts_its_text_but_keeps_the_token() -> None:
    the = next(id for id in range(CODEC.vocab_size) if CODEC.token_text(id) == " the")
    assert run([[*letters("a"), the, *letters("z")]], Stops(strings=("th",))) == ("a ", 2, True, "th")


def test_of_two_strings_in_one_token_the_one_that_ends_first_counts() -> None:
    the = next(id for id in range(CODEC.vocab_size) if CODEC.token_text(id) == " the")
    assert run([[the]], Stops(strings=("he", "th"))) == (" ", 1, True, "th")
    assert run([[the]], Stops(strings=("the", "th"))) == (" ", 1, True, "th")
    assert run([[the]], Stops(strings=("e", "the"))) == (" ", 1, True, "the")


def test_a_stop_that_begins_another_is_not_passed_over() -> None:
    assert run([letters("xabc")], Stops(strings=("abc", "ab"))) == ("x", 3, True, "ab")
    assert run([letters("xabd")], Stops(strings=("abcde", "bd"))) == ("xa", 4, True, "bd")


def test_text_is_held_back_no_longer_than_needed() -> None:
    reply = ReplyText(CODEC, Stops(strings=("aab",)))
    given = [reply.take([token]).text for token in letters("aaacaab")]
    assert given == ["", "", "a", "aac", "", "", ""]


def test_a_stop_string_of_many_bytes_is_found_between_its_bytes() -> None:
    assert run([[token] for token in letters("日本語。終")], Stops(strings=("語。",))) == ("日本", 12, True, "語。")


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(
    text=st.text("ab ", max_size=14),
    strings=st.lists(st.text("ab ", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 14), max_size=5),
)
def test_stop_strings_cut_where_the_slow_truth_does(text: str, strings: list[str], cuts: list[int]) -> None:
    tokens = letters(text)
    edges = [0, *sorted(min(cut, len(tokens)) for cut in cuts), len(tokens)]
    result = run([tokens[a:b] for a, b in pairwise(edges)], Stops(strings=tuple(strings)))
    truth = naive_end(text, strings)
    if truth is None:
        assert result == (text, len(text), False, "")
    else:
        cut, stop = truth
        assert result == (text[:cut], cut + len(stop), True, stop)


@settings(max_examples=200, derandomize=True, deadline=None, database=None)
@given(
    kind=st.sampled_from(KINDS),
    text=st.text("the cat日é😀", max_size=20),
    strings=st.lists(st.text("the cat日é😀", min_size=1, max_size=4), min_size=1, max_size=3),
    size=st.integers(1, 5),
)
def test_the_text_is_the_decoded_kept_tokens_up_to_the_stop(
    kind: str, text: str, strings: list[str], size: int
) -> None:
    codec = Codec(tokenizer_of(kind))
    ids = codec.encode_plain(text)
    reply, streamed, kept = ReplyText(codec, Stops(strings=tuple(strings))), "", 0
    for start in range(0, len(ids), size):
        taken = reply.take(ids[start : start + size])
        streamed, kept = streamed + taken.text, kept + taken.kept
        if taken.ended:
            assert codec.decode(ids[:kept]).startswith(streamed + taken.stop)
            assert not any(stop in codec.decode(ids[: kept - 1]) for stop in strings)
            break
    else:
        assert streamed + reply.rest() == codec.decode(ids)
        assert not any(stop in codec.decode(ids) for stop in strings)


def test_nothing_taken_is_nothing() -> None:
    assert ReplyText(CODEC, Stops()).take([]) == Taken(0, "", False, "")


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(SettingError, match="empty"):
        Stops(strings=("a", ""))


def test_taking_after_the_end_is_a_mistake_of_ours() -> None:
    reply = ReplyText(CODEC, Stops(frozenset({END})))
    reply.take([END])
    with pytest.raises(AssertionError):
        reply.take(letters("a"))
