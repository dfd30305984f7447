"""The default pair as it ships: the real target and the real draft, end to end."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from eagle3chat.engine.default_pair import default_bundle
from eagle3chat.engine.events import Finished, Round
from eagle3chat.engine.pair import Pair, open_pair
from eagle3chat.engine.requests import Controls, Message, PairOptions, Say
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.session import Session

PROMPTS = (
    "Explain why the sky is blue in three concise sentences.",
    "Return a JSON object with the keys name, age and city. Only the JSON.",
    "Write one sentence about a picnic and end it with three emoji.",
)
GREEDY = Sampling()
WARM = Sampling(temperature=0.8, top_p=0.95, seed=7)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return default_bundle(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module", params=["float32", "int4"])
def pair(bundle: Path, request: pytest.FixtureRequest) -> Iterator[Pair]:
    opened = open_pair(PairOptions(bundle=str(bundle), dtype=request.param, context=1024))
    yield opened
    opened.close()


def reply(
    pair: Pair, messages: tuple[Message, ...], chains: Iterable[int], sampling: Sampling, limit: int = 24
) -> tuple[str, tuple[int, ...], Finished]:
    """Text, ids and the end of a reply on a fresh session, with the next of `chains` in every round."""
    turning = iter(chains)
    session = Session(pair)
    text, ids = "", []
    for event in session.reply(Say(messages, Controls(next(turning), sampling), limit)):
        if isinstance(event, Round):
            text += event.text
            ids += [token.id for token in event.tokens]
            session.controls = Controls(next(turning), sampling)
    assert isinstance(event, Finished)
    return text, tuple(ids), event


def ask(text: str) -> tuple[Message, ...]:
    return (Message("user", text),)


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize("prompt", PROMPTS, ids=["sky", "json", "emoji"])
def test_speculation_changes_no_token(pair: Pair, prompt: str, sampling: Sampling) -> None:
    plain = reply(pair, ask(prompt), itertools.repeat(0), sampling)
    speculative = reply(pair, ask(prompt), itertools.repeat(3), sampling)
    changing = reply(pair, ask(prompt), itertools.cycle((3, 0, 1, 2)), sampling)
    assert speculative[:2] == plain[:2]
    assert changing[:2] == plain[:2]


@pytest.mark.parametrize("prompt", PROMPTS, ids=["sky", "json", "emoji"])
def test_the_rounds_texts_are_the_decoded_reply(pair: Pair, prompt: str) -> None:
    text, ids, finished = reply(pair, ask(prompt), itertools.repeat(3), WARM, 40)
    kept = ids[:-1] if finished.reason == "stop" else ids
    assert text == pair.codec.decode(kept)
    assert text


def test_the_target_knows_its_capitals(pair: Pair) -> None:
    """Permuted rows or a wrong rotation still write fluent text, and get this wrong."""
    say = Say(ask("The capital of Italy is"), Controls(3, GREEDY), 4, raw=True)
    text = "".join(event.text for event in Session(pair).reply(say) if isinstance(event, Round))
    assert text.startswith(" Rome")


def test_the_draft_is_wired_to_its_target(pair: Pair) -> None:
    """A fault in taps, mapping, norms or rows leaves the text as it is and ruins the acceptance."""
    usages = [reply(pair, ask(prompt), itertools.repeat(3), GREEDY, 40)[2].usage for prompt in PROMPTS]
    tau = sum(usage.generated_tokens for usage in usages) / sum(usage.rounds for usage in usages)
    assert tau > 1.35


def test_a_second_turn_reuses_the_first_and_equals_a_fresh_session(pair: Pair) -> None:
    session = Session(pair)
    ids: list[int] = []
    text = ""
    for event in session.reply(Say(ask(PROMPTS[0]), Controls(3, GREEDY), 24)):
        if isinstance(event, Round):
            ids += [token.id for token in event.tokens]
            text += event.text
    turns = (*ask(PROMPTS[0]), Message("assistant", text, tuple(ids)), Message("user", "Say it shorter."))
    again: list[int] = []
    for event in session.reply(Say(turns, Controls(3, GREEDY), 24)):
        if isinstance(event, Round):
            again += [token.id for token in event.tokens]
    assert isinstance(event, Finished)
    assert event.usage.reused_tokens >= len(ids)
    if pair.info.dtype == "float32":  # elsewhere a prompt's rows round differently in a chunk than in rounds
        assert tuple(again) == reply(pair, turns, itertools.repeat(3), GREEDY, 24)[1]
