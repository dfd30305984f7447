"""Bundles from strangers: every lie in them is one sentence, told soon, and nothing outside is written or run."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_bundle

from eagle3chat.engine.bundle import open_bundle
from eagle3chat.engine.errors import BundleError, Eagle3Error
from eagle3chat.engine.pair import open_pair
from eagle3chat.engine.requests import PairOptions
from eagle3chat.engine.tensor_file import read_header

TENSORS = "model.safetensors"
SOON = 3.0  # seconds
DEEP = "[" * 100_000


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bundle(tmp_path_factory.mktemp("good"))


@pytest.fixture
def bundle(good: Path, tmp_path: Path) -> Path:
    """A bundle of its own, of links to the good one."""
    copy = tmp_path / "bundle"
    for file in good.rglob("*"):
        place = copy / file.relative_to(good)
        place.parent.mkdir(parents=True, exist_ok=True)
        if file.is_file():
            os.link(file, place)
    return copy


def put(file: Path, data: bytes | str) -> None:
    file.unlink()
    file.write_bytes(data if isinstance(data, bytes) else data.encode())


def told(path: Path) -> str:
    """The one sentence of a bundle that cannot be opened."""
    start = time.monotonic()
    with pytest.raises(BundleError) as caught:
        open_bundle(path)
    assert time.monotonic() - start < SOON
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000
    return str(caught.value)


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[str], str]:
    def edit(text: str) -> str:
        values = json.loads(text)
        change(values)
        return json.dumps(values)

    return edit


MANIFESTS: dict[str, tuple[Callable[[str], str], str]] = {
    "deep": (lambda text: DEEP, "is not JSON"),
    "deep key": (lambda text: text.rstrip()[:-1] + f',"x":{DEEP}' + "]" * 100_000 + "}", "is not JSON"),
    "many digits": (lambda text: '{"format_version": ' + "9" * 5000 + "}", "is not JSON"),
    "infinite": (edited(lambda v: v["target"].update(rms_eps=float("inf"))), "rms_eps has the value inf"),
    "not a number": (edited(lambda v: v["target"].update(rms_eps=float("nan"))), "rms_eps has the value nan"),
    "huge float": (edited(lambda v: v["target"].update(rms_eps=10**400)), "rms_eps has the value 1000"),
    "huge": (edited(lambda v: v.update(max_seq_len=10**30)), "max_seq_len has the value 1000"),
    "negative": (edited(lambda v: v["target"].update(hidden_size=-64)), "hidden_size is -64"),
    "layers": (edited(lambda v: v["target"].update(num_layers=10**12)), "is missing"),
    "long": (edited(lambda v: v["target"].update(num_layers="x" * 10**6)), "num_layers has the value 'xxx"),
    "template": (edited(lambda v: v.update(template="../../secret")), "is not a plain name"),
    "template absolute": (edited(lambda v: v.update(template="/etc/passwd")), "is not a plain name"),
}


@pytest.mark.parametrize("lie", MANIFESTS)
def test_manifests_that_lie(bundle: Path, lie: str) -> None:
    change, words = MANIFESTS[lie]
    put(bundle / "bundle.json", change((bundle / "bundle.json").read_text()))
    assert words in told(bundle)


TOKENIZERS = {
    "deep": DEEP,
    "infinite id": '{"model":{"vocab":{"a":1e999}}}',
    "huge id": '{"model":{"vocab":{"a":' + "9" * 4000 + "}}}",
    "negative id": '{"model":{"vocab":{"a":-5}}}',
    "no number": '{"model":{"vocab":{"a":NaN}}}',
    "added": '{"model":{"vocab":[1,2]}, "added_tokens":[{"id":"x"}]}',
}


@pytest.mark.parametrize("lie", TOKENIZERS)
def test_tokenizers_that_lie(bundle: Path, lie: str) -> None:
    data = TOKENIZERS[lie].encode()
    put(bundle / "tokenizer.json", data)
    sealed = edited(lambda v: v.update(tokenizer_sha256=hashlib.sha256(data).hexdigest()))
    put(bundle / "bundle.json", sealed((bundle / "bundle.json").read_text()))
    assert "is not a tokenizer.json with a vocabulary" in told(bundle)


@pytest.mark.parametrize(
    "name", ["bundle.json", "tokenizer.json", "target/model.safetensors", "draft/model.safetensors"]
)
@pytest.mark.parametrize("kind", ["pipe", "device", "directory", "hole", "dangling", "loop"])
def test_what_is_no_file_is_told_at_once(bundle: Path, name: str, kind: str) -> None:
    file = bundle / name
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    elif kind == "directory":
        file.mkdir()
    elif kind == "hole":
        with file.open("wb") as opened:
            opened.truncate(1 << 40)
    else:
        file.symlink_to("nothing" if kind == "dangling" else file.name)
    assert str(bundle) in told(bundle)


def test_a_link_to_a_secret_shows_nothing_of_it(bundle: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("my private key" * 100)
    for name in ("bundle.json", "target/model.safetensors"):
        before = (bundle / name).read_bytes()
        (bundle / name).unlink()
        (bundle / name).symlink_to(secret)
        assert "private" not in told(bundle)
        (bundle / name).unlink()
        (bundle / name).write_bytes(before)


ENTRY = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
HEADERS: dict[str, bytes] = {
    "negative": json.dumps({"a": ENTRY | {"shape": [-2, -2]}}).encode(),
    "absurd": json.dumps({"a": ENTRY | {"shape": [2**62, 2**62]}}).encode(),
    "many axes": json.dumps({"a": ENTRY | {"shape": [1] * 100_000}}).encode(),
    "many huge axes": json.dumps({"a": ENTRY | {"shape": [10**300] * 5000}}).encode(),
    "truth": json.dumps({"a": ENTRY | {"shape": [True, 4]}}).encode(),
    "backwards": json.dumps({"a": ENTRY | {"data_offsets": [16, 0]}}).encode(),
    "outside": json.dumps({"a": ENTRY | {"data_offsets": [2**40, 2**40 + 16]}}).encode(),
    "overlap": json.dumps({"a": ENTRY, "b": ENTRY}).encode(),
    "type": json.dumps({"a": ENTRY | {"dtype": "F99"}}).encode(),
    "type of types": json.dumps({"a": ENTRY | {"dtype": {}}}).encode(),
    "deep": DEEP.encode(),
    "deep objects": b'{"a":' * 100_000,
    "digits": b'{"a":{"dtype":"U8","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,1]}}',
    "bytes": b"\xff\xfe\x00",
}


@pytest.mark.parametrize("lie", HEADERS)
def test_tensor_headers_that_lie(tmp_path: Path, lie: str) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(len(HEADERS[lie]).to_bytes(8, "little") + HEADERS[lie] + b"\0" * 16)
    start = time.monotonic()
    with pytest.raises(BundleError) as caught:
        read_header(file)
    assert time.monotonic() - start < SOON
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("length", [0, 7, 2**63, 2**64 - 1, 100_000_001])
def test_a_header_that_is_longer_than_the_file(tmp_path: Path, length: int) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(length.to_bytes(8, "little") + b"{}")
    with pytest.raises(BundleError):
        read_header(file)


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/eagle3chat-owned",)


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_is_never_run(tmp_path: Path, protocol: int) -> None:
    from eagle3chat.engine import torch_pickle

    owned = Path("/tmp/eagle3chat-owned")
    owned.unlink(missing_ok=True)
    file = tmp_path / "pytorch_model.bin"
    file.write_bytes(pickle.dumps({"fc.weight": _Bomb()}, protocol))
    with pytest.raises(Eagle3Error):
        torch_pickle.read_pickle(file)
    assert not owned.exists()


def test_a_tokenizer_that_the_library_refuses(bundle: Path) -> None:
    data = b'{"model":{"type":"BPE","vocab":{"a":0},"merges":["x y"]},"added_tokens":[]}'
    put(bundle / "tokenizer.json", data)
    sealed = edited(lambda v: v.update(tokenizer_sha256=hashlib.sha256(data).hexdigest()))
    put(bundle / "bundle.json", sealed((bundle / "bundle.json").read_text()))
    with pytest.raises(BundleError, match="the tokenizer cannot be read"):
        open_pair(PairOptions(bundle=str(bundle)))
