"""Streamed text equals decoded text, for every tokenizer and every way to cut a reply into portions."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.decoders import DecodeStream
from vocabularies import CONTROLS, HARD, KINDS, tokenizer_of, word_pieces

from eagle3chat.engine.text import Codec, ReplyText, Stops

CODECS = {kind: Codec(tokenizer_of(kind)) for kind in KINDS}
BOUNDED = settings(max_examples=150, derandomize=True, deadline=None, database=None)


def stream(codec: Codec, portions: Sequence[Sequence[int]], stops: Stops | None = None) -> str:
    reply = ReplyText(codec, stops or Stops())
    return "".join([reply.take(portion).text for portion in portions]) + reply.rest()


@st.composite
def replies(draw: st.DrawFn) -> tuple[str, list[list[int]]]:
    """A kind of tokenizer, and any ids (control tokens, broken bytes, unknown ids) cut into portions."""
    kind = draw(st.sampled_from(KINDS))
    codec = CODECS[kind]
    text = st.text(max_size=8) | st.sampled_from(HARD)
    some = st.one_of(
        text.map(codec.encode_plain),
        st.lists(st.integers(0, codec.vocab_size + 2), max_size=6),
        st.lists(st.sampled_from(broken_bytes(codec)), min_size=1, max_size=6),
    )
    ids = [id for part in draw(st.lists(some, max_size=6)) for id in part]
    cuts = sorted(draw(st.lists(st.integers(0, len(ids)), max_size=8)))
    return kind, [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]


def broken_bytes(codec: Codec) -> list[int]:
    """Tokens of one byte above 0x7F each: characters in parts, and bytes that are in no character."""
    singles = [id for id in range(codec.vocab_size) if len(codec.token_bytes(id)) == 1]
    return [id for id in singles if codec.token_bytes(id) >= b"\x80"]


@BOUNDED
@given(replies())
def test_any_portions_give_the_decoded_text(reply: tuple[str, list[list[int]]]) -> None:
    kind, portions = reply
    ids = [id for portion in portions for id in portion]
    whole = CODECS[kind].decode(ids)
    assert stream(CODECS[kind], portions) == whole
    assert stream(CODECS[kind], [[id] for id in ids]) == whole


@BOUNDED
@given(replies())
def test_decoding_equals_the_library_but_for_broken_fallback_runs(reply: tuple[str, list[list[int]]]) -> None:
    kind, portions = reply
    ids = [id for portion in portions for id in portion]
    ours = CODECS[kind].decode(ids)
    theirs = tokenizer_of(kind).decode(ids, skip_special_tokens=True)
    if kind == "byte-level" or "\ufffd" not in theirs:
        assert ours == theirs


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", HARD)
def test_hard_text_streams_in_whole_characters_from_every_split(kind: str, text: str) -> None:
    codec = CODECS[kind]
    ids = codec.encode_plain(text)
    expected = tokenizer_of(kind).decode(ids)
    assert codec.decode(ids) == expected
    for cut in range(len(ids) + 1):
        reply = ReplyText(codec, Stops())
        before, after = reply.take(ids[:cut]).text, reply.take(ids[cut:]).text
        assert before + after == expected
        assert reply.rest() == ""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", [text for text in HARD if "\ufffd" not in text])
def test_text_comes_as_early_as_from_the_library(kind: str, text: str) -> None:
    codec, tokenizer = CODECS[kind], tokenizer_of(kind)
    theirs = DecodeStream(skip_special_tokens=True)
    reply = ReplyText(codec, Stops())
    ours_so_far = theirs_so_far = ""
    for id in codec.encode_plain(text):
        ours_so_far += reply.take([id]).text
        theirs_so_far += theirs.step(tokenizer, id) or ""
        assert ours_so_far.startswith(theirs_so_far)
    assert ours_so_far.startswith(theirs_so_far)
    assert len(ours_so_far) > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "raw", [b"\x80", b"\xe2", b"\xf0", b"\xff", b"\xf0\x9f\x98\x80\xf0", b"A\x80", b"\xed\xa0\x80"]
)
def test_bytes_that_never_complete_neither_raise_nor_stall(kind: str, raw: bytes) -> None:
    codec = CODECS[kind]
    byte = {codec.token_bytes(id): id for id in reversed(range(codec.vocab_size))}
    ids = [byte[bytes([value])] for value in raw]
    ids = [byte[b"A"], *ids * 200]
    reply = ReplyText(codec, Stops())
    seen = 0
    text = ""
    for taken, id in enumerate(ids, 1):
        piece = reply.take([id]).text
        text += piece
        seen = taken if piece else seen
        assert taken - seen <= 3, "held back longer than a character can take"
    text += reply.rest() + ReplyText(codec, Stops()).take([byte[b"b"]]).text
    assert text == (b"A" + raw * 200).decode("utf-8", "replace") + "b"


@pytest.mark.parametrize("kind", ["llama", "metaspace"])
def test_only_the_first_token_loses_the_space_that_marks_a_word(kind: str) -> None:
    codec = CODECS[kind]
    ids = codec.encode_plain("the cat")
    the = ids[0]
    assert codec.token_text(the).startswith(" ")
    assert codec.decode(ids) == "the cat"
    control = codec.id_of("<s>")
    assert control is not None
    assert codec.decode([control, *ids, the]) == stream(codec, [[control], ids, [the]])
    assert codec.decode([control, *ids]) == "the cat"
    assert codec.decode([*ids, the])[len("the cat") :] == codec.token_text(the)


def test_gemma_keeps_the_space_of_the_first_token() -> None:
    codec = CODECS["gemma"]
    ids = codec.encode_plain(" the cat")
    assert codec.decode(ids) == stream(codec, [[id] for id in ids]) == " the cat"


def test_word_pieces_stream_as_the_library_decodes_them() -> None:
    tokenizer = word_pieces()
    codec = Codec(tokenizer)
    ids = [codec.id_of(name) or 0 for name in ("hello", "##ing", "world", ".", "hello")]
    assert codec.decode(ids) == tokenizer.decode(ids) == "helloing world. hello"
    assert stream(codec, [[id] for id in ids]) == "helloing world. hello"


@pytest.mark.parametrize("kind", KINDS)
def test_control_tokens_are_skipped_and_do_not_part_a_character(kind: str) -> None:
    codec = CODECS[kind]
    control = codec.id_of(CONTROLS[3])
    assert control is not None
    assert codec.is_control(control)
    byte = {codec.token_bytes(id): id for id in reversed(range(codec.vocab_size))}
    first, *others = (byte[bytes([value])] for value in "😀".encode())
    assert stream(codec, [[first, control], others, [control]]) == "😀"


def test_rejected_tokens_leave_no_trace() -> None:
    codec = CODECS["byte-level"]
    ids = codec.encode_plain("naïve 日本語 😀")
    reply = ReplyText(codec, Stops())
    text = ""
    for id in ids:
        rejected = ReplyText(codec, Stops())
        rejected.take([id ^ 1, 300, 301])  # a drafted chain that the target refuses, decoded for display
        codec.token_text(id ^ 1)
        text += reply.take([id]).text
    assert text + reply.rest() == "naïve 日本語 😀"


def test_cost_does_not_grow_with_the_reply() -> None:
    codec = CODECS["llama"]
    ids = codec.encode_plain("the cat sat 😀 on the mat. ") * 2000
    reply = ReplyText(codec, Stops(strings=("\n\nUser:", "the cat sat on")))
    quarter = len(ids) // 4
    seconds = []
    for start in range(0, 4 * quarter, quarter):
        began = time.process_time()
        for id in ids[start : start + quarter]:
            reply.take([id])
        seconds.append(time.process_time() - began)
    assert min(seconds[1:]) < 3 * seconds[0] + 0.05
    assert sum(seconds) / len(ids) < 1e-4, "more than 0.1 ms for a token"
