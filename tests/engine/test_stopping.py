"""The chain that ends where the draft is unsure: on simulated machines and drafts, against every fixed length."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from eagle3chat.engine.backend import Fate
from eagle3chat.engine.confidence import GOES_ON, Confidence
from eagle3chat.engine.costs import Costs
from eagle3chat.engine.plan import Seen
from eagle3chat.engine.prices import Prices
from eagle3chat.engine.stopping import LONGEST, LONGEST_SAMPLED, Stopping

STEP = 0.03  # seconds of one proposal, where plain decoding takes 1
FIRST = 0.1


def row(rows: int) -> float:
    """Seconds of the target."""
    return 1.0 + 0.08 * (rows - 1)


@dataclass(slots=True)
class Machine:
    """A draft that knows how sure it may be: a token with probability p is accepted with chance `trust` * p."""

    rng: random.Random
    sure: tuple[float, float] = (0.0, 1.0)
    trust: float = 1.0
    dear: float = 1.0  # times the cost of a row
    step: float = STEP
    unease: float = 0.0  # seconds more of a pass beside a draft; fewer and fewer in the rounds after it
    uneasy: float = 0.0
    tokens: int = 0
    seconds: float = 0.0
    drafted: int = 0

    def proposals(self) -> Sequence[tuple[float, bool]]:
        found = [self.rng.uniform(*self.sure) for _ in range(LONGEST)]
        return [(p, self.rng.random() < self.trust * p) for p in found]

    def round(self, length: Stopping | int, sampled: bool = False) -> None:
        plan = None if isinstance(length, int) else length.plan(sampled=sampled)
        longest = length if plan is None else plan.chain
        proposals, verified, asked = self.proposals(), 0, 0
        while verified < longest:
            asked += 1
            fate = Fate.MORE if plan is None or plan.worth is None else plan.worth(proposals[verified][0])
            verified += fate is not Fate.DROPPED
            if fate is not Fate.MORE:
                break
        accepted = 0
        while accepted < verified and proposals[accepted][1]:
            accepted += 1
        noise = self.rng.uniform(0.95, 1.05) * (3.0 if self.rng.random() < 0.02 else 1.0)
        drafting = (FIRST + self.step * asked if asked else 0.0) * noise
        self.uneasy = self.unease if asked else 0.6 * self.uneasy
        spent = (1.0 + self.uneasy + (row(verified + 1) - 1.0) * self.dear) * noise + drafting
        if not isinstance(length, int):
            p = [p for p, _ in proposals[:verified]]
            length.saw(Seen(p, accepted, min(verified, accepted + 1), spent, drafting))
        self.tokens, self.seconds, self.drafted = self.tokens + accepted + 1, self.seconds + spent, self.drafted + asked

    def pace(self, length: Stopping | int, rounds: int, sampled: bool = False) -> float:
        self.tokens, self.seconds, self.drafted = 0, 0.0, 0
        for _ in range(rounds):
            self.round(length, sampled)
        return self.tokens / self.seconds


CASES = {
    "all kinds of certainty": {},
    "sure": {"sure": (0.7, 1.0)},
    "unsure": {"sure": (0.0, 0.4)},
    "too sure": {"trust": 0.6},
    "too modest": {"sure": (0.0, 0.6), "trust": 1.6},
    "dear rows": {"dear": 5.0},
    "cheap rows": {"dear": 0.3},
    "dear proposals": {"step": 0.15},
    "passes that are slower beside a draft": {"sure": (0.0, 0.7), "unease": 0.2},
}


@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("case", CASES)
def test_at_least_as_good_as_the_best_fixed_length(case: str, sampled: bool) -> None:
    longest = LONGEST_SAMPLED if sampled else LONGEST
    shares = []  # of one seed it would say how many slow rounds there were
    for seed in range(4):
        machine = Machine(random.Random(seed), **CASES[case])  # type: ignore[arg-type]
        fixed = max(machine.pace(k, 1200) for k in range(longest + 1))
        shares.append(machine.pace(Stopping(8), 1200, sampled) / fixed)
    assert sum(shares) / len(shares) > (0.93 if case in ("sure", "too sure") else 0.97), shares


def test_it_uses_what_the_draft_says() -> None:
    """Where the draft's certainty varies no fixed length comes near."""
    machine = Machine(random.Random(2))
    fixed = max(machine.pace(k, 3000) for k in range(LONGEST + 1))
    assert machine.pace(Stopping(8), 3000) > 1.03 * fixed


@pytest.mark.parametrize("sure", [(0.0, 0.05), (0.9, 1.0)], ids=["and knows it", "and is sure"])
def test_a_draft_that_never_agrees_costs_little(sure: tuple[float, float]) -> None:
    shares = []  # of one seed it would say how many slow rounds there were
    for seed in range(8):
        machine = Machine(random.Random(seed), sure=sure, trust=0.0)
        length, plain = Stopping(5), machine.pace(0, 400)
        shares.append(machine.pace(length, 400) / plain)
        assert machine.drafted < 100
    assert sum(shares) / len(shares) > 0.95


def test_a_draft_in_whose_company_passes_are_slow_is_seldom_asked() -> None:
    """Rounds with it look cheap against each other, and against the first ones without it."""
    shares, asked = [], 0
    for seed in range(12):
        machine = Machine(random.Random(seed), sure=(0.0, 0.4), unease=0.3)
        length, plain = Stopping(5), machine.pace(0, 800)
        tokens, seconds = 0, 0.0
        for _ in range(10):
            length.begin()
            machine.pace(length, 80)
            tokens, seconds, asked = tokens + machine.tokens, seconds + machine.seconds, asked + machine.drafted
        shares.append(tokens / seconds / plain)
    assert sum(shares) / len(shares) > 0.94 and asked < 1400, (shares, asked)


def test_a_draft_that_wakes_up_is_noticed() -> None:
    machine = Machine(random.Random(3), sure=(0.8, 1.0), trust=0.0)
    length = Stopping(6)
    machine.pace(length, 300)
    machine.trust = 1.0
    machine.pace(length, 600)
    assert machine.pace(length, 300) > 2.0 * machine.pace(0, 300)


def test_one_slow_round_does_not_close_a_length() -> None:
    shares = []
    for seed in range(4):
        length, machine = Stopping(6), Machine(random.Random(seed), sure=(0.6, 0.9))
        machine.pace(length, 2)
        length.plan(sampled=False)
        length.saw(Seen([0.7, 0.7], 2, 2, 50.0, 10.0))
        undisturbed = Machine(random.Random(seed), sure=(0.6, 0.9)).pace(Stopping(6), 2300)
        shares.append(machine.pace(length, 2000) / undisturbed)
    assert sum(shares) / len(shares) > 0.95, shares


def test_what_it_says() -> None:
    length, machine = Stopping(6), Machine(random.Random(5), sure=(0.5, 1.0))
    assert length.plan(sampled=False).why == "measuring"
    machine.pace(length, 50)
    plan = length.plan(sampled=False)
    assert plan.chain == LONGEST and "x plain" in plan.why
    assert length.plan(sampled=True).chain == LONGEST_SAMPLED
    useless = Machine(random.Random(5), trust=0.0)
    useless.pace(length, 80)
    assert "more than it brings" in length.plan(sampled=False).why


def test_short_limits() -> None:
    for longest in (1, 2):
        length, machine = Stopping(longest), Machine(random.Random(6), sure=(0.9, 1.0))
        machine.pace(length, 100)
        assert length.plan(sampled=False).chain == longest


def test_confidence_begins_with_what_the_draft_says_and_learns() -> None:
    for sampled in (False, True):
        confidence = Confidence(sampled=sampled)
        shares = [confidence.share(0, p / 100) for p in range(100)]
        assert shares == sorted(shares) and shares[-1] > 0.9
        for _ in range(200):
            confidence.saw([0.3], 1)
            confidence.saw([0.9, 0.9, 0.3], 2)
        assert confidence.share(0, 0.3) > 0.85 and confidence.share(2, 0.3) < 0.1
        assert confidence.share(1, 0.3) == Confidence(sampled=sampled).share(1, 0.3)
        assert confidence.goes_on(0, 0.9) > 0.9 and confidence.goes_on(1, 0.9) < 0.1
        assert confidence.goes_on(0, 0.3) == GOES_ON  # nothing came after it


def test_costs_are_medians_and_lines() -> None:
    costs = Costs()
    assert costs.of(3) > costs.of(0) and not costs.known
    for seconds in (1.0, 1.0, 9.0):
        costs.saw(0, seconds)
    for seconds in (1.4, 1.4, 1.4):
        costs.saw(2, seconds)
    assert costs.of(0) == 1.0 and costs.of(2) == 1.4
    assert costs.of(1) == pytest.approx(1.2) and costs.of(3) == pytest.approx(1.6)
    assert costs.more(3)[2] == pytest.approx((1.2 + 4 * 0.1) / (6 + 4))  # no round of 3 was seen: a line, and a guess
    for _ in range(8):
        costs.saw(2, 1.4)
        costs.saw(3, 2.0)
    line = (6.8727 + 4 * 0.1) / (19.8182 + 4)
    assert costs.more(3)[2] == pytest.approx((8 * 0.6 + 20 * line) / 28, abs=1e-4)


def test_costs_hold_on_a_machine_that_slows_down() -> None:
    """A length that was measured while rounds took half as long does not look cheap afterwards."""
    costs = Costs()
    for _ in range(30):
        costs.saw(0, 1.0)
        costs.saw(1, 1.2)
        costs.saw(3, 1.6)
    for _ in range(60):
        costs.saw(0, 2.0)
        costs.saw(1, 2.4)
    assert costs.of(3) / costs.of(1) == pytest.approx(1.6 / 1.2, rel=0.02)
    assert costs.of(1) / costs.of(0) == pytest.approx(1.2, rel=0.02)


def test_a_dear_proposal_is_asked_for_when_it_may_pay() -> None:
    """Where the first token says what comes: after an improbable one nothing more is drafted."""
    length = Stopping(6)
    rng = random.Random(7)
    asked: dict[bool, list[int]] = {True: [], False: []}
    for _ in range(600):
        plan, sure = length.plan(sampled=False), rng.random() < 0.5
        p, drafted, verified = 0.9 if sure else 0.35, 0, 0
        while drafted < plan.chain and plan.worth is not None:
            drafted += 1
            fate = plan.worth(p)
            verified += fate is not Fate.DROPPED
            if fate is not Fate.MORE:
                break
        accepted = 0
        while accepted < verified and rng.random() < p:
            accepted += 1
        drafting = 0.1 + 0.12 * (drafted - 1) if drafted else 0.0
        length.saw(Seen([p] * verified, accepted, min(verified, accepted + 1), row(verified + 1) + drafting, drafting))
        if plan.worth is not None:
            asked[sure].append(drafted)
    assert sum(asked[True][-50:]) / 50 > 2.5 and sum(asked[False][-50:]) / 50 < 1.2


def test_prices_tell_rows_from_proposals() -> None:
    prices = Prices(3)
    assert prices.drafts[0] == 0.0 and prices.more_drafts[1] == pytest.approx(0.05)
    for _ in range(20):
        for proposals, verified in ((0, 0), (1, 0), (2, 1), (2, 2), (3, 3)):
            drafting = 0.0 if not proposals else 0.2 + 0.1 * proposals
            prices.saw(proposals, verified, drafting, 2.0 + 0.2 * verified + drafting)
    prices.review()
    assert prices.rows == pytest.approx([1.0, 1.1, 1.2, 1.3], rel=1e-3)
    assert prices.drafts == pytest.approx([0.0, 0.15, 0.2, 0.25], rel=1e-3)
    assert prices.more_drafts == pytest.approx([0.15, 0.05, 0.05], rel=1e-3)


def test_prices_tell_what_a_pass_beside_a_draft_costs_more() -> None:
    prices = Prices(3)
    for _ in range(20):
        for proposals, verified in ((0, 0), (1, 0), (1, 1), (2, 2)):
            prices.saw(proposals, verified, 0.2 * proposals, (2.4 if proposals else 2.0) + 0.2 * (verified + proposals))
    prices.review()
    assert prices.rows == pytest.approx([1.2, 1.3, 1.4, 1.5], abs=0.02)
    assert prices.drafts[1:3] == pytest.approx([0.1, 0.2], rel=1e-3)


def test_more_rows_never_look_cheaper_than_fewer() -> None:
    # Chosen for looking free, a chain has no round without its row that would set its cost right.
    prices = Prices(4)
    for seconds in (1.2, 1.25, 1.3):
        prices.saw(0, 0, 0.0, seconds)
    for _ in range(30):
        prices.saw(1, 1, 0.1, 1.1)
    prices.review()
    assert prices.rows[0] == 1.0
    assert all(more >= 0.03 for more in prices.more_rows)
    assert all(after > before for before, after in zip(prices.rows[:-1], prices.rows[1:], strict=True))
