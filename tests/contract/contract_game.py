"""Playing a backend against the slow truth, round by round; bundles, references and loaded pairs are shared."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from contract_pairs import PAIRS, VOCAB, make_pair
from reference import Reference, Truth

from eagle3chat.engine.backend import Backend, Verdict
from eagle3chat.engine.pair import Pair, open_pair
from eagle3chat.engine.requests import Controls, PairOptions
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.speculate import speculate

Plan = Iterator[tuple[int, Sampling]]
NEAR = 1e-4  # of probabilities and margins
TIE = 1e-3  # a token that won by less may be another one in float32
GREEDY = Sampling()
WARM = Sampling(temperature=0.8, top_p=0.9, seed=11)
HOT = Sampling(temperature=1.2, min_p=0.05, seed=12)
NARROW = Sampling(temperature=1.0, top_k=9, seed=13)
BOILING = Sampling(temperature=3.0, seed=14)  # noise decides most, so the draft, which hears it, agrees often
NEEDS = {"torch": ("torch",), "mlx": ("mlx", "mlx_lm")}  # backends, and what must be installed for each
SLACKS = {
    "torch": ("eagle3chat.engine.torch_cache.SLACK", 20),  # half of it is what can always be dropped
    "mlx": ("eagle3chat.engine.mlx_target.SLACK", 4),  # it takes the longest chain and one row at least
}
SAMPLINGS = {"greedy": GREEDY, "T 0.8 top-p": WARM, "T 1.2 min-p": HOT, "top-k": NARROW}


@dataclass(slots=True)
class Bench:
    """What tests share: everything that was made or opened, by what it was made from."""

    directory: Path
    bundles: dict[tuple[str, str], Path] = field(default_factory=dict)
    references: dict[Path, Reference] = field(default_factory=dict)
    pairs: dict[tuple[str, Path, int | None], Pair] = field(default_factory=dict)
    truths: dict[tuple[object, ...], Truth] = field(default_factory=dict)
    games: dict[tuple[str, str], Counter[tuple[int, int]]] = field(default_factory=dict)

    def bundle(self, family: str, dialect: str | None = None) -> Path:
        """A family's bundle, with the draft dialect that goes with it or another."""
        key = family, dialect or PAIRS[family]
        if key not in self.bundles:
            place = self.directory / " ".join(key)
            made = (place / "bundle" / "draft" / "model.safetensors").is_file()
            self.bundles[key] = place / "bundle" if made else make_pair(place, *key)
        return self.bundles[key]

    def open(self, kind: str, path: Path, context: int | None = None) -> Pair:
        """The pair on a backend, in float32 on the CPU; sliding windows move every few rows."""
        key = kind, path, context
        if key not in self.pairs:
            options = PairOptions(bundle=str(path), backend=kind, device="cpu", dtype="float32", context=context)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(*SLACKS[kind])
                self.pairs[key] = open_pair(options)
        return self.pairs[key]

    def truth(self, path: Path, tokens: Sequence[int], chain: int, sampling: Sampling, prompt: int) -> Truth:
        """What a round should say."""
        key = path, tuple(tokens), chain, sampling, prompt
        if key not in self.truths:
            if path not in self.references:
                self.references[path] = Reference(path)
            self.truths[key] = self.references[path].round(tokens, chain, sampling, prompt)
        return self.truths[key]

    def plain(self, path: Path, prompt: Sequence[int], sampling: Sampling, count: int) -> list[int]:
        """What the target alone says after a prompt."""
        tokens = list(prompt)
        for _ in range(count):
            truth = self.truth(path, tokens, 0, sampling, len(prompt))
            assert truth.margin[0] > NEAR / 10, "a tie: use another seed"
            tokens.append(truth.chosen[0])
        return tokens[len(prompt) :]

    def close(self) -> None:
        """Free all that was opened."""
        for pair in self.pairs.values():
            pair.close()


def prompt_of(length: int, seed: int = 0) -> list[int]:
    """Random ids, none of them a stop."""
    rng = random.Random(seed)
    return [rng.randrange(3, VOCAB) for _ in range(length)]


def mixed(seed: int, samplings: Sequence[Sampling], chains: Sequence[int] = (0, 1, 2, 3, 4, 5, 6)) -> Plan:
    """Chains and samplings that change every round."""
    rng = random.Random(seed)
    while True:
        yield rng.choice(chains), rng.choice(samplings)


def prefilled(backend: Backend, tokens: Sequence[int], keep: int = 0) -> list[int]:
    """All that a prefill says."""
    return list(backend.prefill(tokens, keep))


def keep_all(offered: tuple[int, ...]) -> tuple[int, bool]:
    """A cut that never stops."""
    return len(offered), False


def text_of(backend: Backend, prompt: Sequence[int], plan: Plan, count: int) -> list[int]:
    """What `speculate` writes after a prompt."""
    prefilled(backend, prompt)
    steps = speculate(backend, len(prompt), lambda: Controls(*next(plan)), keep_all, count)
    return [token for step in steps for token in step.tokens]


def play(
    bench: Bench,
    kind: str,
    path: Path,
    prompt: Sequence[int],
    plan: Plan,
    count: int,
    *,
    context: int | None = None,
    keep: int = 0,
) -> tuple[list[int], Counter[tuple[int, int]]]:
    """Decode `count` tokens through `speculate`, every verdict compared with the truth.

    Args:
        keep: Rows of the conversation before that the prompt shares.

    Returns:
        The text, and how often each (drafted, accepted) occurred.
    """
    backend = bench.open(kind, path, context).backend
    prefilled(backend, prompt, keep)
    tokens, tally = list(prompt), Counter[tuple[int, int]]()
    for step in speculate(backend, len(prompt), lambda: Controls(*next(plan)), keep_all, count):
        left = count - (len(tokens) - len(prompt))
        chain = min(step.controls.chain, backend.max_chain, backend.capacity - len(tokens), left - 1)
        truth = bench.truth(path, tokens, chain if len(tokens) > 1 else 0, step.controls.sampling, len(prompt))
        assert_true(step.verdict, truth, f"after {len(tokens)} tokens, chain {chain}, {step.controls.sampling}")
        tokens += step.tokens
        tally[len(step.verdict.drafted), step.accepted] += 1
    return tokens[len(prompt) :], tally


def assert_true(verdict: Verdict, truth: Truth, where: str) -> None:
    """Fail where a verdict says something else than the truth.

    Where a proposal is nearly tied and another one was drafted, the rows behind it are of another text.
    """
    assert len(verdict.drafted) == len(truth.drafted), where
    same = len(truth.drafted)
    for place, (ours, theirs) in enumerate(zip(verdict.drafted, truth.drafted, strict=True)):
        if ours != theirs:
            assert truth.draft_margin[place] < TIE, f"{where}: drafted {verdict.drafted}, not {truth.drafted}"
            same = place
            break
    assert verdict.draft_p[:same] == pytest.approx(truth.draft_p[:same], abs=NEAR), f"{where}: draft_p"
    assert verdict.target_p[:same] == pytest.approx(truth.target_p[:same], abs=NEAR), f"{where}: target_p"
    for row in range(same + 1):
        if verdict.chosen[row] != truth.chosen[row]:
            assert truth.margin[row] < TIE, f"{where}: chosen {verdict.chosen}, not {truth.chosen}"
            continue
        assert verdict.chosen_p[row] == pytest.approx(truth.chosen_p[row], abs=NEAR), f"{where}: chosen_p {row}"
        assert verdict.margin[row] == pytest.approx(truth.margin[row], abs=5 * NEAR), f"{where}: margin {row}"
        theirs = [p for _, p in truth.runners_up[row] if p > NEAR]
        assert [p for _, p in verdict.runners_up[row]][: len(theirs)] == pytest.approx(theirs, abs=NEAR), where
