"""Every round of every backend says what the slow truth says, for every target family and every draft dialect."""

from __future__ import annotations

import itertools
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from contract_game import BOILING, GREEDY, SAMPLINGS, WARM, Bench, mixed, play, prefilled, prompt_of, text_of
from contract_pairs import CHUNK, DIALECTS, PAIRS
from families import WINDOW, WINDOWED
from tiny import tiny_bundle

COUNT = 60


def game(bench: Bench, kind: str, family: str) -> Counter[tuple[int, int]]:
    """Conversations with chains 0..6 and all samplings mixed; gives how often each (drafted, accepted) occurred."""
    if (kind, family) not in bench.games:
        path, tally = bench.bundle(family), Counter[tuple[int, int]]()
        plan = mixed(1, list(SAMPLINGS.values()))
        tally += play(bench, kind, path, prompt_of(2 * CHUNK + 5, seed=1), plan, COUNT)[1]
        plan = mixed(2, [BOILING], (4, 5, 6))
        tally += play(bench, kind, path, prompt_of(3, seed=2), plan, 36)[1]
        bench.games[kind, family] = tally
    return bench.games[kind, family]


def test_rounds_of_every_family(bench: Bench, kind: str, family: str) -> None:
    tally = game(bench, kind, family)
    assert {drafted for drafted, _ in tally} == set(range(7))


def test_every_acceptance_count_occurs(bench: Bench, kind: str) -> None:
    tally: Counter[tuple[int, int]] = Counter()
    for family in PAIRS:
        with suppress(AssertionError):  # told by the test of the family
            tally += game(bench, kind, family)
    missing = [(k, a) for k in range(1, 7) for a in range(k + 1) if not tally[k, a]]
    assert not missing, f"no round with these (drafted, accepted): {missing}"


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", *WINDOWED])
@pytest.mark.parametrize("name", ["greedy", "T 0.8 top-p"])
def test_text_is_what_the_target_alone_writes(bench: Bench, kind: str, family: str, name: str) -> None:
    """Also where windows have passed over most of it: WINDOW positions of COUNT and more."""
    path, prompt = bench.bundle(family), prompt_of(19, seed=4)
    plain = bench.plain(path, prompt, SAMPLINGS[name], COUNT)
    backend = bench.open(kind, path).backend
    assert text_of(backend, prompt, mixed(5, [SAMPLINGS[name]]), COUNT) == plain
    if family in WINDOWED:
        assert text_of(backend, prompt, mixed(6, [SAMPLINGS[name]], (0, 6)), COUNT) == plain


@pytest.mark.parametrize("dialect", DIALECTS)
def test_rounds_of_every_dialect(bench: Bench, kind: str, dialect: str) -> None:
    path = bench.bundle("llama", dialect)
    play(bench, kind, path, prompt_of(21, seed=3), mixed(7, list(SAMPLINGS.values()), (1, 3, 4, 6)), 16)


@pytest.mark.parametrize("length", [1, 2, CHUNK, CHUNK + 1, CHUNK + 2])
@pytest.mark.parametrize("windowed", [False, True])
def test_prompts_around_the_chunk(bench: Bench, kind: str, windowed: bool, length: int) -> None:
    path = bench.bundle("gemma4" if windowed else "llama")
    play(bench, kind, path, prompt_of(length, seed=8), mixed(8, [GREEDY, WARM], (2, 3)), 7)


def test_many_plain_rounds_leave_a_whole_draft(bench: Bench, kind: str) -> None:
    """More of them than the draft lets gather before it looks."""
    path = bench.bundle("llama")
    plan = itertools.chain(itertools.repeat((0, WARM), 75), itertools.repeat((4, WARM)))
    play(bench, kind, path, prompt_of(12, seed=9), plan, 90)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gemma4_e", "gpt_oss"])
def test_the_context_ends_exactly(bench: Bench, kind: str, family: str) -> None:
    path, capacity = bench.bundle(family), 40
    assert bench.open(kind, path, capacity).backend.capacity == capacity
    plan = mixed(10, [GREEDY, WARM], (3, 5, 6))
    text, _ = play(bench, kind, path, prompt_of(27, seed=10), plan, 100, context=capacity)
    assert len(text) == capacity + 1 - 27


@pytest.mark.parametrize("family", ["llama", "gemma3", "gemma4_e", "gpt_oss"])
@pytest.mark.parametrize("rounds", [0, 4])
def test_rows_that_are_kept_are_as_good_as_fresh_ones(bench: Bench, kind: str, family: str, rounds: int) -> None:
    """After a conversation longer than the window; `keep` is one less than what both have in common."""
    path: Path = bench.bundle(family)
    first = prompt_of(22, seed=11)
    text = text_of(bench.open(kind, path).backend, first, mixed(11, [GREEDY], (0, 3, 6)), 6 * rounds) if rounds else []
    told = [*first, *text]
    if not rounds:
        prefilled(bench.open(kind, path).backend, told)
    for common in (len(told) - 1, len(told) - 3, len(told) - WINDOW - 1, 5):
        edited = [*told[:common], 3 + (told[common] - 2) % 60, *prompt_of(5, seed=common)]
        play(bench, kind, path, edited, mixed(common, [WARM, GREEDY], (2, 4)), 6, keep=common - 1)
        # The caches now stand for `edited`, which the next one shares less with.


@pytest.mark.parametrize("options", [{"quantized": True}, {"tied": True, "quantized": True}, {"dtype": "F16"}], ids=str)
def test_rounds_of_weights_in_other_forms(bench: Bench, kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    """4 bits with an embedding of 8, and float16, computed in float32."""
    path = tiny_bundle(tmp_path, agree=0.9, **options)
    play(bench, kind, path, prompt_of(21, seed=12), mixed(12, [GREEDY, WARM], (1, 2, 3)), 16)
