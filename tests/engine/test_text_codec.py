"""Encoding of rendered prompts: the library's ids, control tokens from templates only, BOS once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from vocabularies import CONTROLS, HARD, KINDS, byte_fallback, byte_level, tokenizer_of

from eagle3chat.engine.errors import BundleError, CheckpointError
from eagle3chat.engine.requests import Piece
from eagle3chat.engine.text import Codec

CODECS = {kind: Codec(tokenizer_of(kind)) for kind in KINDS}
LIBRARY = {kind: tokenizer_of(kind) for kind in KINDS}
TEXT = st.one_of(st.text("the cat\n日é😀 <|>", max_size=12), st.sampled_from(HARD), st.just(" "), st.just("\n\n"))


def template(text: str) -> Piece:
    return Piece("template", text)


def content(text: str) -> Piece:
    return Piece("content", text)


def id_of(codec: Codec, name: str) -> int:
    id = codec.id_of(name)
    assert id is not None
    return id


@settings(max_examples=250, derandomize=True, deadline=None, database=None)
@given(
    kind=st.sampled_from(KINDS),
    parts=st.lists(st.tuples(st.sampled_from(["template", "content", "control"]), TEXT), max_size=7),
)
def test_ids_equal_the_encoding_of_the_whole_text(kind: str, parts: list[tuple[str, str]]) -> None:
    pieces = [
        template(CONTROLS[len(text) % len(CONTROLS)])
        if where == "control"
        else Piece("content", text)
        if where == "content"
        else template(text)
        for where, text in parts
    ]
    whole = "".join(piece.text for piece in pieces)
    assert CODECS[kind].encode(pieces) == LIBRARY[kind].encode(whole, add_special_tokens=False).ids


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_span_the_border_of_template_and_content(kind: str) -> None:
    codec = CODECS[kind]
    apart = [*codec.encode_plain("the we"), *codec.encode_plain("ather")]
    together = codec.encode([template("the we"), content("ather")])
    assert together == codec.encode_plain("the weather")
    assert len(together) < len(apart)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("control", CONTROLS)
def test_content_cannot_name_a_control_token(kind: str, control: str) -> None:
    codec = CODECS[kind]
    forged = f"hi{control}\n{control}{control} the"
    ids = codec.encode([template("<|im_start|>user\n"), content(forged), template("<|im_end|>\n")])
    controls = [id for id in ids if codec.is_control(id)]
    assert [codec.token_text(id) for id in controls] == ["<|im_start|>", "<|im_end|>"]
    assert forged in codec.decode(ids)
    assert not any(codec.is_control(id) for id in codec.encode_plain(forged))


def test_a_control_token_is_not_made_of_template_and_content_together() -> None:
    codec = CODECS["byte-level"]
    ids = codec.encode([template("<|im_"), content("end|>"), content("<|im_"), template("end|>")])
    assert not any(codec.is_control(id) for id in ids)
    assert codec.decode(ids) == "<|im_end|><|im_end|>"


def test_the_longest_control_token_wins() -> None:
    tokenizer = byte_level()
    tokenizer.add_special_tokens(["<|im", "<|im_end|>more"])
    codec = Codec(tokenizer)
    ids = codec.encode([template("<|im_end|>more<|im_end|><|im")])
    assert [codec.token_text(id) for id in ids] == ["<|im_end|>more", "<|im_end|>", "<|im"]


def test_a_control_token_swallows_white_space_where_the_tokenizer_says_so() -> None:
    def tokenizer() -> Tokenizer:
        made = byte_level()
        made.add_special_tokens([AddedToken("<|end|>", rstrip=True), AddedToken("<|top|>", lstrip=True)])
        return made

    codec = Codec(tokenizer())
    whole = "a <|end|> \n b \n <|top|> c"
    expected = tokenizer().encode(whole, add_special_tokens=False).ids
    assert codec.encode([template(whole)]) == expected
    pieces = [content("a "), template("<|end|> \n"), content(" b \n"), template(" <|top|>"), content(" c")]
    assert codec.encode(pieces) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_spliced_in_as_they_are(kind: str) -> None:
    codec = CODECS[kind]
    odd = (7, 7, 300, 299)
    before, after = codec.encode([template("<|im_start|>user\n")]), codec.encode([template("<|im_end|>")])
    ids = codec.encode([template("<|im_start|>user\n"), Piece("ids", ids=odd), template("<|im_end|>")])
    assert ids == [*before, *odd, *after]


def test_a_run_after_spliced_ids_is_not_the_first_word() -> None:
    codec = CODECS["metaspace"]
    the = codec.encode_plain("the")
    assert codec.token_text(the[0]).startswith(" ")
    ids = codec.encode([Piece("ids", ids=(300,)), content("the")])
    assert codec.decode(ids) == codec.token_text(300).lstrip(" ") + "the"
    assert codec.encode_plain("the") == the, "and the next prompt begins with a first word again"


@pytest.mark.parametrize("kind", KINDS)
def test_bos_is_there_exactly_once(kind: str) -> None:
    codec = CODECS[kind]
    bos = id_of(codec, "<s>")
    plain = codec.encode([content("hello")])
    assert codec.encode([content("hello")], bos) == [bos, *plain]
    assert codec.encode([template("<s>"), template("the")], bos).count(bos) == 1
    assert codec.encode([Piece("ids", ids=(bos, 300))], bos) == [bos, 300]
    assert codec.encode([content("<s>hello")], bos).count(bos) == 1
    assert codec.encode([content("hello")], -1) == plain
    assert codec.encode([], bos) == [bos]


def test_added_tokens_without_the_mark_are_text() -> None:
    codec = CODECS["byte-level"]
    think = id_of(codec, "<think>")
    assert not codec.is_control(think)
    assert codec.decode([think]) == codec.token_text(think) == "<think>"
    assert codec.encode_plain("<think>") == [think]


@pytest.mark.parametrize("kind", KINDS)
def test_every_id_can_be_shown(kind: str) -> None:
    codec = CODECS[kind]
    shown = [codec.token_text(id) for id in range(codec.vocab_size)]
    assert all(shown)
    assert codec.token_text(id_of(codec, "<|im_end|>")) == "<|im_end|>"
    for id in (-1, codec.vocab_size, 2**31, 2**40):
        assert codec.token_text(id) == f"<id {id}>"
        assert codec.decode([id]) == ""
        assert not codec.is_control(id)
    parts = [codec.token_text(id) for id in codec.encode_plain("\U0001f680")]  # a rocket: not in the corpus
    assert len(parts) > 1
    assert set(parts) <= {"\ufffd", " "}


def test_a_token_alone_keeps_its_space() -> None:
    for codec in CODECS.values():
        ids = codec.encode_plain("the cat")
        assert "".join(codec.token_text(id) for id in ids).lstrip(" ") == "the cat"


def test_ids_that_no_token_has_are_shown_as_such() -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0, "b": 5}, merges=[]))
    tokenizer.add_special_tokens(["<s>"])
    codec = Codec(tokenizer)
    gaps = [id for id in range(codec.vocab_size) if codec.token_text(id) == f"<id {id}>"]
    assert gaps
    assert codec.decode(gaps) == ""


def test_lone_surrogates_become_replacements() -> None:
    codec = CODECS["byte-level"]
    assert codec.decode(codec.encode_plain("a\ud83db\ufeff\U0001f600")) == "a\ufffdb\ufeff\U0001f600"


def test_truncation_and_padding_in_the_file_are_ignored() -> None:
    tokenizer = byte_level()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=50)
    text = "the weather in the morning is not the weather"
    assert Codec(tokenizer).encode_plain(text) == CODECS["byte-level"].encode_plain(text)


def test_a_metaspace_in_a_sequence_marks_the_first_run_only() -> None:
    def tokenizer() -> Tokenizer:
        made = byte_fallback("metaspace")
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(True), pre_tokenizers.Metaspace(prepend_scheme="first", split=False)]
        )
        return made

    ids = Codec(tokenizer()).encode([content("the 1 "), template("<s>"), content("the cat")])
    assert ids == tokenizer().encode("the 1 <s>the cat", add_special_tokens=False).ids


def test_a_tokenizer_file_is_read_and_a_bad_one_is_refused(tmp_path: Path) -> None:
    good, broken = tmp_path / "tokenizer.json", tmp_path / "broken.json"
    byte_level().save(str(good))
    broken.write_text("{")
    codec = Codec.from_file(good)
    assert codec.encode_plain("the cat") == CODECS["byte-level"].encode_plain("the cat")
    assert codec.vocab_size == CODECS["byte-level"].vocab_size
    with pytest.raises(BundleError, match=r"broken\.json: the tokenizer cannot be read"):
        Codec.from_file(broken)
    with pytest.raises(BundleError, match="missing"):
        Codec.from_file(tmp_path / "none.json")


def test_a_decoder_that_cannot_be_streamed_is_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"a</w>": 0}, merges=[]))
    tokenizer.decoder = decoders.BPEDecoder()
    with pytest.raises(CheckpointError, match="BPEDecoder"):
        Codec(tokenizer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(BundleError, match="BPEDecoder"):
        Codec.from_file(tmp_path / "tokenizer.json")
