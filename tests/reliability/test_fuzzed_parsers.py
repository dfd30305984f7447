"""Parsers on bytes and values that nobody meant: one of our own errors, or an answer; never anything else."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from eagle3chat.engine.bundle import tensor_files, tokenizer_size
from eagle3chat.engine.errors import Eagle3Error
from eagle3chat.engine.events import Finished, Round, Token, Usage
from eagle3chat.engine.manifest import read_manifest
from eagle3chat.engine.requests import Controls, Message
from eagle3chat.engine.tensor_file import read_header
from eagle3chat.settings import load_settings
from eagle3chat.templates.jinja_template import JinjaTemplate
from eagle3chat.templates.loader import load_template
from eagle3chat.transcript import Transcript
from eagle3chat.transcript_digest import digest
from eagle3chat.transcript_html import page
from eagle3chat.transcript_line import to_messages
from eagle3chat.transcript_read import load
from eagle3chat.ui.clean import clean, clean_draft, clean_line, clean_token
from eagle3chat.ui.history import History

Told = contextlib.suppress(Eagle3Error)
NASTY = ("\x1b[2J", "\x1b]52;c;AA\x07", "\x9b2J", "\u202e", "[bold]", "<script>", "\x00", "\ud800", "]]>", "{{", "漢")
TEXT = st.one_of(st.text(max_size=30), st.sampled_from(NASTY))
LEAF = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**25), 10**25),
    st.floats(),
    TEXT,
    st.sampled_from([-1, 0, 1, 2**31, 2**63]),
)
VALUE = st.recursive(
    LEAF, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=12
)
USAGE = Usage(9, 3, 7, 2, 4, 1, 1, (2, 2, 1), (2, 1, 1), (2, 2, 2), 0.25, 0.5, 0.3)
CODES = frozenset((*map(chr, range(32)), *map(chr, range(0x7F, 0xA0)), *"\u202a\u202b\u202d\u202e\u2066\u2067\u2068"))


def changed(text: str, data: st.DataObject) -> bytes:
    """A valid JSON document with some of its values replaced, or some of its bytes."""
    if data.draw(st.booleans()):
        raw = bytearray(text.encode())
        for _ in range(data.draw(st.integers(1, 4))):
            place = data.draw(st.integers(0, len(raw) - 1))
            raw[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        return bytes(raw)
    document = json.loads(text)
    node, key = document, data.draw(st.sampled_from(sorted(document)))
    while isinstance(node[key], dict) and node[key] and data.draw(st.booleans()):
        node = node[key]
        key = data.draw(st.sampled_from(sorted(node)))
    node[key] = data.draw(VALUE)
    return json.dumps(document).encode()


def manifest_text(tmp_path_factory) -> str:  # type: ignore[no-untyped-def]
    from tiny import tiny_bundle

    return (tiny_bundle(tmp_path_factory.mktemp("tiny")) / "bundle.json").read_text()


@given(data=st.data())
def test_manifests(tmp_path_factory, data):  # type: ignore[no-untyped-def]
    text = KEPT.setdefault("manifest", "") or manifest_text(tmp_path_factory)
    KEPT["manifest"] = text
    place = tmp_path_factory.getbasetemp()
    (place / "bundle.json").write_bytes(changed(text, data))
    with Told:
        read_manifest(place)


KEPT: dict[str, str] = {}
HEADER = json.dumps({"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}, "__metadata__": {"x": "y"}})


@given(data=st.data())
def test_tensor_headers(tmp_path_factory, data):  # type: ignore[no-untyped-def]
    raw = changed(HEADER, data)
    length = data.draw(st.one_of(st.just(len(raw)), st.integers(0, 2**64 - 1)))
    file = tmp_path_factory.getbasetemp() / "x.safetensors"
    file.write_bytes(length.to_bytes(8, "little") + raw + b"\0" * data.draw(st.integers(0, 20)))
    with Told:
        read_header(file)


@given(data=st.data())
def test_indexes_and_tokenizers(tmp_path_factory, data):  # type: ignore[no-untyped-def]
    place = tmp_path_factory.getbasetemp()
    index = json.dumps({"weight_map": {"a": "m.safetensors", "b": "n.safetensors"}, "metadata": {}})
    (place / "model.safetensors.index.json").write_bytes(changed(index, data))
    with Told:
        assert all(file.parent == place for file in tensor_files(place))
    tokenizer = json.dumps({"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 2, "content": "c"}]})
    with Told:
        assert tokenizer_size(place, changed(tokenizer, data)) >= 0


@given(
    st.one_of(
        st.binary(max_size=200), st.dictionaries(st.sampled_from(["chain", "top_p", "seed", "keys", "model"]), LEAF)
    )
)
def test_settings(tmp_path_factory, content):  # type: ignore[no-untyped-def]
    file = tmp_path_factory.getbasetemp() / "settings.toml"
    if isinstance(content, dict):
        content = "".join(f"{k} = {json.dumps(v)}\n" for k, v in content.items()).encode("utf-8", "surrogatepass")
    file.write_bytes(content)
    with Told:
        load_settings(file)


WORDS = ("{{", "}}", "{%", "%}", "for x in messages", "endfor", "(", ")", "'", "|", "tojson", "if 1", "endif", "*", "9")
SOURCE = st.one_of(st.text(max_size=80), st.lists(st.sampled_from(WORDS), max_size=25).map(" ".join))


@given(SOURCE)
def test_templates(tmp_path_factory, source):  # type: ignore[no-untyped-def]
    with Told:
        JinjaTemplate(source, name="x", special_tokens={}).render([Message("user", "a"), Message("assistant", "b")])
    file = tmp_path_factory.getbasetemp() / "t.toml"
    file.write_text(source, errors="replace")
    with Told:
        load_template(str(file))


def transcript(directory: Path) -> bytes:
    written = Transcript.create(directory)
    tokens = (Token(1, "\x1b[2J", 0.5, 0.5), Token(2, "<script>", 0.5, 0.5))
    for text in ("Hello \x1b]0;x\x07", "<img src=x onerror=alert(1)>"):
        written.user(text)
        written.round(Round(0, 5, 2, 0.8, tokens, 1, tokens[1], "correction", tokens, "a\x1b[2J<script>", 0.01))
        written.reply(Finished("stop", "", "", USAGE))
    written.settings(dataclasses.replace(Controls(), chain=2))
    written.back(1)
    written.close()
    return written.path.read_bytes()


@given(data=st.data())
def test_transcripts_and_what_is_made_of_them(tmp_path_factory, data):  # type: ignore[no-untyped-def]
    text = KEPT.get("transcript") or transcript(tmp_path_factory.mktemp("t")).decode()
    KEPT["transcript"] = text
    lines = text.splitlines()
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(lines) - 1))
        with contextlib.suppress(ValueError, KeyError, TypeError):
            lines[place] = changed(lines[place], data).decode("utf-8", "replace")
    file = tmp_path_factory.getbasetemp() / "20000101-000000-abcdef.jsonl"
    file.write_bytes("\n".join(lines).encode("utf-8", "replace"))
    with Told:
        conversation = load(file)
        to_messages(conversation)
        digest(file)
        html = page(conversation)
        assert "<script" not in html.replace("&lt;script", "")
        assert not set(html) & (CODES - {"\n"})


@given(st.binary(max_size=300))
def test_histories(tmp_path_factory, content):  # type: ignore[no-untyped-def]
    file = tmp_path_factory.getbasetemp() / "history.jsonl"
    file.write_bytes(content + b'\n{"text": "kept"}\n')
    assert History(file).entries[-1].text == "kept"


@given(st.one_of(TEXT, st.text(st.characters(max_codepoint=0xFFFF), max_size=60)))
def test_nothing_that_drives_a_terminal_is_left(text):  # type: ignore[no-untyped-def]
    for work in (clean, clean_line, clean_token, clean_draft):
        assert not set(work(text)) & (CODES - {"\n", "\t"})


def test_a_megabyte_on_one_line_is_cleaned() -> None:
    assert set(clean_line("\x1b" * 1_000_000)) == {"␛"}
