"""Conversations through `Session` on every backend: caches kept across turns say what the slow truth says."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from contract_game import GREEDY, NEAR, TIE, WARM, Bench
from contract_pairs import CHUNK
from families import WINDOWED

from eagle3chat.engine.events import Finished, Prefill, Round
from eagle3chat.engine.requests import Controls, Message, Say
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.session import Session
from eagle3chat.engine.text import Stops

LIMIT = 9
FIRST = "the rain in spain stays mainly in the plains of the land"


@dataclass(slots=True)
class Watched:
    """A session whose rounds are compared with the truth as they come."""

    bench: Bench
    kind: str
    family: str
    session: Session = field(init=False)

    def __post_init__(self) -> None:
        self.session = Session(self.bench.open(self.kind, self.bench.bundle(self.family)))

    def reply(self, say: Say, cancel_at: int | None = None, leave_at: int | None = None) -> tuple[list[int], Finished]:
        """The reply's ids, and how it ended; cancelled or left alone after so many rounds."""
        path = self.bench.bundle(self.family)
        prompt = self.bench.open(self.kind, path).prompt_ids(say)
        tokens, rounds, finished = list(prompt), 0, None
        events = self.session.reply(say)
        for event in events:
            if isinstance(event, Round):
                assert event.position == len(tokens)
                truth = self.bench.truth(path, tokens, len(event.drafted), say.controls.sampling, len(prompt))
                where = f"after {len(tokens)} tokens of which {len(prompt)} are the prompt"
                judged = event.accepted + (event.own_kind == "correction")
                for place, token in enumerate(event.drafted[:judged]):
                    if token.id != truth.drafted[place]:
                        assert truth.draft_margin[place] < TIE, where
                        break
                    assert token.draft_p == pytest.approx(truth.draft_p[place], abs=NEAR), where
                    assert token.target_p == pytest.approx(truth.target_p[place], abs=NEAR), where
                if event.own is not None and event.accepted <= truth.accepted:
                    assert event.own.id == truth.chosen[event.accepted] or truth.margin[event.accepted] < TIE, where
                tokens += [token.id for token in event.tokens]
                rounds += 1
            elif isinstance(event, Finished):
                finished = event
            if rounds == cancel_at:
                self.session.cancel()
            if leave_at is not None and rounds == leave_at and (rounds or not isinstance(event, Prefill)):
                events.close()
                return tokens[len(prompt) :], None
        assert finished is not None
        return tokens[len(prompt) :], finished


def say(*turns: Message | str, sampling: Sampling = WARM, chain: int = 3, limit: int = LIMIT) -> Say:
    """A request for a reply to turns; text is the user's."""
    messages = tuple(turn if isinstance(turn, Message) else Message("user", turn) for turn in turns)
    return Say(messages, Controls(chain, sampling), limit)


def said(ids: Sequence[int], finished: Finished | None) -> Message:
    """A reply as the conversation keeps it: without the token that stopped it."""
    stopped = finished is not None and finished.reason == "stop"
    return Message("assistant", "", tuple(ids[:-1] if stopped else ids))


def test_turns_edits_and_regenerations(bench: Bench, kind: str, family: str) -> None:
    watched = Watched(bench, kind, family)
    first = watched.reply(say(FIRST))
    second = watched.reply(say(FIRST, said(*first), "more"))
    assert second[1].usage.reused_tokens > 0 or family in WINDOWED
    watched.reply(say(FIRST, said(*first), "more", sampling=Sampling(temperature=1.0, seed=99)))  # regenerated
    watched.reply(say(FIRST, said(*first), "more or less", sampling=GREEDY, chain=5))  # the last turn edited
    watched.reply(say(FIRST[:20] + "!" + FIRST[21:], sampling=GREEDY))  # the first one edited
    again = watched.reply(say(FIRST))
    assert again[0] == first[0]


@pytest.mark.parametrize("family", ["llama", "gemma4_e"])
@pytest.mark.parametrize("rounds", [0, 1, 3])
@pytest.mark.parametrize("left", [False, True], ids=["cancelled", "left"])
def test_a_reply_that_ends_early_leaves_a_session_like_a_fresh_one(
    bench: Bench, kind: str, family: str, rounds: int, left: bool
) -> None:
    watched = Watched(bench, kind, family)
    watched.reply(say(FIRST))
    ended = "leave_at" if left else "cancel_at"
    part, finished = watched.reply(say(FIRST, sampling=GREEDY, limit=24), **{ended: rounds})
    if part:
        watched.reply(say(FIRST, said(part, finished), "go on", chain=4))
    whole, _ = watched.reply(say(FIRST, sampling=GREEDY, limit=24))
    assert whole[: len(part)] == part


@pytest.mark.parametrize("family", ["llama", "gemma4_e"])
@pytest.mark.parametrize("chunks", [1, 2])
def test_a_prefill_that_is_cancelled_is_taken_up(bench: Bench, kind: str, family: str, chunks: int) -> None:
    watched = Watched(bench, kind, family)
    long = say(FIRST * 2)
    done = []
    for event in watched.session.reply(long):
        if isinstance(event, Prefill):
            done.append(event.done)
            if len(done) == chunks + 1:
                watched.session.cancel()
    assert done == [CHUNK * chunk for chunk in range(chunks + 1)]
    _, finished = watched.reply(long)
    assert finished.usage.reused_tokens == CHUNK * chunks


def test_a_stop_at_every_place_cuts_before_it_is_committed(bench: Bench, kind: str) -> None:
    """Each token of a reply in turn ends it where it first occurs, in the middle of a chain too."""
    watched = Watched(bench, kind, "llama")
    request = say(FIRST, sampling=Sampling(temperature=1.2, seed=5), chain=6, limit=12)
    whole, _ = watched.reply(request)
    pair = bench.open(kind, bench.bundle("llama"))
    for place, token in enumerate(whole, 1):
        if whole.index(token) != place - 1:
            continue
        watched.session = Session(dataclasses.replace(pair, stops=Stops(frozenset({token}), ())))
        part, finished = watched.reply(request)
        assert (part, finished.reason) == (whole[:place], "stop" if place < 12 else finished.reason)
        assert list(watched.session.committed[-place:]) == part
        if place in (2, 5):
            watched.reply(say(FIRST, said(part, finished), "so", chain=4, limit=5))
