"""Characters go to the token that completes them, and no character is lost or moved."""

from fake_worker import rounds_of, token, tokens_of
from hypothesis import given
from hypothesis import strategies as st

from eagle3chat.engine.events import Round
from eagle3chat.ui.marks import Marker, Piece


def round_with(texts, accepted, kind, text, index=0):
    tokens = [token(t, True) for t in texts]
    return Round(
        index=index,
        position=0,
        chain=3,
        temperature=0.0,
        drafted=tuple(tokens[:accepted]),
        accepted=accepted,
        own=tokens[accepted] if accepted < len(tokens) else None,
        own_kind=kind,
        considered=(),
        text=text,
        seconds=0.01,
    )


def test_each_kind_gets_its_words():
    marker = Marker()
    pieces = marker.take(round_with([" the", " quick", " fox"], 2, "bonus", " the quick fox"))
    assert pieces == [Piece("accepted", " the quick"), Piece("bonus", " fox")]


def test_an_emoji_belongs_to_the_token_that_completes_it():
    marker = Marker()
    assert marker.take(round_with(["\ufffd", "\ufffd", "\ufffd"], 2, "correction", "")) == []
    pieces = marker.take(round_with(["\ufffd", " ok"], 1, "bonus", "😀 ok", 1))
    assert pieces == [Piece("accepted", "😀"), Piece("bonus", " ok")]


def test_held_back_text_keeps_its_kind():
    marker = Marker()
    assert marker.take(round_with([" a", " stop"], 1, "bonus", " a st")) == [
        Piece("accepted", " a"),
        Piece("bonus", " st"),
    ]
    assert marker.take(round_with([" b", " c"], 1, "bonus", "op b c", 1)) == [
        Piece("bonus", "op"),
        Piece("accepted", " b"),
        Piece("bonus", " c"),
    ]


def test_a_first_space_that_decoding_drops():
    marker = Marker()
    pieces = marker.take(round_with([" Hello", ",", " you"], 2, "bonus", "Hello, you"))
    assert "".join(p.text for p in pieces) == "Hello, you"
    assert pieces[-1] == Piece("bonus", " you")


def test_a_stop_token_is_not_text():
    marker = Marker()
    assert marker.take(round_with([" end", "<|im_end|>"], 1, "bonus", " end")) == [Piece("accepted", " end")]
    assert marker.rest("!") == [Piece("bonus", "!")]


@given(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=30), st.integers(0, 6), st.data())
def test_text_is_rebuilt_whatever_the_tokens_say(words, lag, data):
    """Text delayed at random, tokens spelled with parts of characters: the joined pieces are the text."""
    whole = "".join(words)
    rounds = rounds_of(words)
    marker, got, sent = Marker(), "", 0
    for at, round_ in enumerate(rounds):
        end = (
            len(whole)
            if at == len(rounds) - 1
            else max(sent, min(len(whole), sent + len(round_.text) - data.draw(st.integers(0, lag))))
        )
        spelled = round_with([t.text for t in round_.tokens], round_.accepted, round_.own_kind, whole[sent:end], at)
        got += "".join(p.text for p in marker.take(spelled))
        sent = end
    assert got == whole


@given(st.text(alphabet="aé😀字\u0301 \n", min_size=1, max_size=40), st.data())
def test_tokens_of_bytes(text, data):
    """Tokens cut anywhere between bytes, decoded one by one as a tokenizer would."""
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(raw) - 1)))))
    parts = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True) if raw[a:b]]
    marker, got, seen, emitted = Marker(), "", b"", ""
    for at, part in enumerate(parts):
        seen += part
        readable = seen.decode(errors="ignore") if at < len(parts) - 1 else text
        new, emitted = readable[len(emitted) :], readable
        got += "".join(
            p.text for p in marker.take(round_with([part.decode(errors="replace")], 0, "correction", new, at))
        )
    assert got == text


def test_real_words():
    text = "Why did the programmer refuse?\n\nBecause he had no space."
    marker = Marker()
    pieces = [p for r in rounds_of(tokens_of(text)) for p in marker.take(r)]
    assert "".join(p.text for p in pieces) == text
    assert {p.kind for p in pieces} == {"accepted", "correction", "bonus"}
