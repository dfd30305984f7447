"""Sessions under random lives: whatever was said, edited, cut off or left before, a reply is that of a fresh session.

Compared are the text and every round's drafts with the probabilities of both models, since a stale row in the draft's
cache changes no text.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny import tiny_bundle

from eagle3chat.engine.errors import PromptError
from eagle3chat.engine.events import Finished, Prefill, Round
from eagle3chat.engine.pair import Pair, open_pair
from eagle3chat.engine.requests import Controls, Message, PairOptions, Say
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.session import Session
from eagle3chat.engine.text import Stops

VOCAB, CHUNK, CAPACITY, NEAR = 128, 8, 72, 1e-4
NEEDS = {"torch": ("torch",), "mlx": ("mlx", "mlx_lm")}
SAMPLINGS = (
    Sampling(),
    Sampling(temperature=0.9, seed=5),
    Sampling(temperature=0.7, top_p=0.9, seed=6),
    Sampling(temperature=0.8, seed=7, repetition=1.2, presence=0.3, frequency=0.2),
)


class Ids(Pair):
    """A pair whose prompt is the ids of the last message, so that tests choose every token."""

    def prompt_ids(self, say: Say) -> list[int]:
        ids = say.messages[-1].token_ids
        assert ids is not None
        return list(ids)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny bundle whose draft attends to its whole past, so that a stale row of it shows."""
    sizes = {"hidden": 32, "layers": 3, "intermediate": 48, "draft_vocab": 112, "taps": (0, 1, 3)}
    directory = tmp_path_factory.mktemp("pair")
    made = tiny_bundle(directory, vocab=VOCAB, max_prefill=CHUNK, max_seq_len=CAPACITY, agree=0.85, sharp=4.0, **sizes)
    file, noise = made / "draft" / "model.safetensors", np.random.default_rng(1)
    weights = load_file(file)
    for name, weight in weights.items():
        if "proj" in name:
            more = noise.standard_normal(weight.shape) * 0.3 * weight.shape[1] ** -0.5
            less = 0.2 if "k_proj" in name else 1.0  # so that its own row does not outshine all others
            weights[name] = (less * weight + more).astype(np.float32)
    save_file(weights, file)
    return made


@pytest.fixture(scope="module", params=NEEDS)
def pairs(request: pytest.FixtureRequest, path: Path) -> Iterator[tuple[Pair, Pair]]:
    """Two of the same: one lives, one begins anew for each comparison."""
    for module in NEEDS[request.param]:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    options = PairOptions(bundle=str(path), backend=request.param, device="cpu", dtype="float32")
    opened = [open_pair(options) for _ in range(2)]
    alike = [
        Ids(p.backend, p.codec, p.template, Stops(frozenset({2}), ()), p.bos_id, p.vocab_size, p.info) for p in opened
    ]
    yield alike[0], alike[1]
    for pair in alike:
        pair.close()


@dataclass(frozen=True, slots=True)
class Plan:
    """A request, and what becomes of it."""

    prompt: tuple[int, ...]
    sampling: Sampling
    chains: tuple[int, ...]  # of the rounds, in turns
    limit: int | None
    stop_at: int | None = None  # the event at which it is cancelled or left
    leave: bool = False


def play(session: Session, plan: Plan) -> tuple[list[Prefill], list[Round], Finished | None]:
    """What a session says to a plan."""
    controls = [Controls(chain, plan.sampling) for chain in plan.chains]
    say = Say((Message("user", "", plan.prompt),), controls[0], plan.limit)
    prefills: list[Prefill] = []
    rounds: list[Round] = []
    finished = None
    events = session.reply(say)
    for index, event in enumerate(events):
        if isinstance(event, Prefill):
            prefills.append(event)
        elif isinstance(event, Round):
            rounds.append(event)
            session.controls = controls[len(rounds) % len(controls)]
        else:
            finished = event
        if index == plan.stop_at:
            if plan.leave:
                events.close()
                break
            session.cancel()
    return prefills, rounds, finished


def assert_alike(ours: Sequence[Round], fresh: Sequence[Round], where: object) -> None:
    """As many rounds as ours has say the same."""
    assert len(ours) <= len(fresh), where
    for a, b in zip(ours, fresh, strict=False):
        assert (a.position, a.accepted, [t.id for t in a.tokens]) == (b.position, b.accepted, [t.id for t in b.tokens])
        assert [t.id for t in a.drafted] == [t.id for t in b.drafted], where
        assert [t.draft_p for t in a.drafted] == pytest.approx([t.draft_p for t in b.drafted], abs=NEAR), where
        assert [t.target_p for t in a.drafted] == pytest.approx([t.target_p for t in b.drafted], abs=NEAR), where


def ids_of(rounds: Sequence[Round]) -> tuple[int, ...]:
    return tuple(token.id for round_ in rounds for token in round_.tokens)


def some(chance: random.Random, count: int) -> tuple[int, ...]:
    return tuple(chance.randrange(3, VOCAB) for _ in range(count))


def next_prompt(chance: random.Random, before: tuple[int, ...]) -> tuple[int, ...]:
    """The conversation so far with something done to it: gone on with, edited, cut, asked again, begun anew."""
    kind = chance.choice(("on", "on", "edit", "edit", "edit", "cut", "same", "new", "short"))
    if kind == "new" or not before:
        return some(chance, chance.choice((2, 7, 8, 9, 10, 16, 17, 18, 25, 40)))
    if kind == "short":
        return some(chance, chance.choice((1, 2)))
    if kind == "on":
        before += some(chance, chance.choice((1, 2, 3, 9)))
    if kind == "edit":
        place = chance.randrange(len(before))
        before = before[:place] + some(chance, chance.choice((1, 3))) + before[place + chance.choice((0, 1)) :]
    if kind == "cut":
        before = before[: chance.randrange(1, len(before) + 1)]
    return before[: CAPACITY - 6]


@pytest.mark.parametrize("seed", range(6))
def test_any_life_leaves_a_session_like_a_fresh_one(pairs: tuple[Pair, Pair], seed: int) -> None:
    chance = random.Random(seed)
    session = Session(pairs[0])
    text: tuple[int, ...] = ()
    ended: list[str] = []
    for _ in range(8):
        plan = Plan(
            next_prompt(chance, text),
            chance.choice(SAMPLINGS),
            tuple(chance.choice((0, 1, 2, 3, 3, 5)) for _ in range(chance.choice((1, 3)))),
            chance.choice((1, 2, 5, 9, None)),
            chance.choice((None, None, 0, 1, 2, 3, 5, 8)),
            chance.random() < 0.5,
        )
        prefills, rounds, finished = play(session, plan)
        _, fresh, _ = play(Session(pairs[1]), dataclasses.replace(plan, stop_at=None))
        assert_alike(rounds, fresh, plan)
        assert prefills[0].done == prefills[0].reused <= prefills[-1].done <= prefills[-1].total == len(plan.prompt) - 1
        steps = [later.done - earlier.done for earlier, later in itertools.pairwise(prefills)]
        assert all(0 < step <= CHUNK for step in steps), "progress at each chunk"
        if rounds:
            assert session.committed == plan.prompt + ids_of(rounds)
        else:
            assert session.committed == plan.prompt[: prefills[-1].done + 1], "what is cached is known"
        if finished is not None and finished.reason != "cancelled":
            assert len(rounds) == len(fresh)
        ended.append("left" if finished is None else finished.reason)
        text = plan.prompt + ids_of(rounds)
    assert len(set(ended)) > 1


@pytest.mark.parametrize("leave", [False, True], ids=["cancelled", "left"])
def test_every_event_is_a_place_to_stop(pairs: tuple[Pair, Pair], leave: bool) -> None:
    """The first request has a prefill of four chunks and some rounds; after each of its events another follows."""
    chance = random.Random(1)
    before, prompt = some(chance, 12), some(chance, 4 * CHUNK - 1)
    plan = Plan(prompt, SAMPLINGS[1], (3, 0, 2), 20)
    after = Plan((*prompt, 9, 9, 9), SAMPLINGS[1], (3,), 6)
    truth = play(Session(pairs[1]), after)[1]
    again = play(Session(pairs[1]), plan)
    places = len(again[0]) + len(again[1])
    assert places > 12
    for place in range(places):
        session = Session(pairs[0])
        play(session, Plan(before, SAMPLINGS[0], (2,), 3))  # so that something is in the caches
        _, rounds, finished = play(session, dataclasses.replace(plan, stop_at=place, leave=leave))
        assert_alike(rounds, again[1], place)
        assert (finished is None) == leave
        if not leave:
            assert finished.reason == "cancelled" or place == places - 1
            assert finished.usage.generated_tokens == len(ids_of(rounds))
        follow = (after, truth) if place % 2 else (plan, again[1])
        _, later, _ = play(session, follow[0])
        assert_alike(later, follow[1], place)
        assert len(later) == len(follow[1])


@pytest.mark.parametrize("length", [1, 2, 3, CHUNK, CHUNK + 1, CHUNK + 2, 2 * CHUNK + 1, 3 * CHUNK, CAPACITY])
def test_prompts_of_any_length(pairs: tuple[Pair, Pair], length: int) -> None:
    prompt = some(random.Random(length), length)
    prefills, rounds, finished = play(Session(pairs[0]), Plan(prompt, SAMPLINGS[1], (3,), 5))
    dones = [*range(0, length - 1, CHUNK), length - 1] if length > 1 else [0]
    assert [event.done for event in prefills] == dones
    assert {event.total for event in prefills} == {length - 1}
    assert finished is not None and len(ids_of(rounds)) == min(5, CAPACITY + 1 - length)
    session = Session(pairs[1])
    play(session, Plan(prompt[: max(1, length - 3)], SAMPLINGS[0], (2,), 1))
    assert_alike(play(session, Plan(prompt, SAMPLINGS[1], (3,), 5))[1], rounds, length)


@pytest.mark.parametrize("chains", [(0,), (1,), (3,), (6,), (6, 0, 2)], ids=str)
def test_the_context_end_loses_no_token(pairs: tuple[Pair, Pair], chains: tuple[int, ...]) -> None:
    for length in (CAPACITY - 9, CAPACITY - 5, CAPACITY - 2, CAPACITY - 1, CAPACITY):
        prompt = some(random.Random(3), length)
        _, rounds, finished = play(Session(pairs[0]), Plan(prompt, SAMPLINGS[1], chains, None))
        whole = play(Session(pairs[1]), Plan(prompt, SAMPLINGS[1], (0,), None))
        assert ids_of(rounds) == ids_of(whole[1])
        assert finished is not None and finished.reason in ("context", "stop")
        if finished.reason == "context":
            assert length + len(ids_of(rounds)) == CAPACITY + 1
    session = Session(pairs[0])
    full = (*prompt, *ids_of(rounds))
    with pytest.raises(PromptError, match=f"{len(full)} tokens and the context holds {CAPACITY}"):
        play(session, Plan(full, SAMPLINGS[1], chains, None))
