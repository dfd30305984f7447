"""Measuring chains against each other: the same prompts, seed and limits, plain and speculative in turns.

Every prompt is decoded with every chain before the next prompt comes, in an order that turns from prompt to
prompt, so that a machine that warms up, throttles or is shared is as unkind to one chain as to another. Knows
sessions; what the figures come to is in `bench_summary`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from eagle3chat.engine.errors import SettingError
from eagle3chat.engine.events import Finished, Prefill, Round, Usage
from eagle3chat.engine.pair import Pair
from eagle3chat.engine.plan import Length
from eagle3chat.engine.requests import Controls, Message, Say
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.session import Session, open_length
from eagle3chat.engine.small_files import read_named

WARM_UP_TOKENS = 8
MOST_CHARACTERS = 1 << 26  # of a file of prompts
AUTO = -1  # the chain that finds its own length


@dataclass(frozen=True, slots=True)
class Case:
    """A prompt of a prompts file."""

    id: str
    kind: str
    prompt: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured."""

    cases: tuple[Case, ...]
    chains: tuple[int, ...]  # AUTO among them
    repeat: int
    sampling: Sampling
    max_new_tokens: int
    system: str | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One reply of a bench. `chain` may be AUTO."""

    case: Case
    repeat: int  # from 0
    chain: int
    usage: Usage
    rounds: tuple[Round, ...]

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The reply's ids, the stop token included."""
        return tuple(token.id for r in self.rounds for token in r.tokens)


def load_cases(path: Path | None = None, limit: int | None = None) -> tuple[Case, ...]:
    """The prompts of a JSONL file with `id`, `kind` and `prompt`; None: the packaged ones.

    Raises:
        SettingError: The file cannot be read, a line is not such an object, or nothing is left.
    """
    name = "the packaged prompts" if path is None else str(path)
    try:
        if path is None:
            text = resources.files("eagle3chat").joinpath("data/prompts.jsonl").read_text(encoding="utf-8")
        else:
            text = read_named(path, MOST_CHARACTERS)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"The prompts {name} cannot be read: {error}.", "Check --prompts.") from error
    numbered = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    cases = tuple(_case(line, f"{name}, line {number}") for number, line in numbered)[:limit]
    if not cases:
        raise SettingError(f"There are no prompts in {name}.", 'Write lines like {"id": "a", "prompt": "Hello"}.')
    return cases


def _case(line: str, where: str) -> Case:
    fix = 'Write lines like {"id": "a", "kind": "chat", "prompt": "Hello"}.'
    try:
        value = json.loads(line)
    except ValueError as error:
        raise SettingError(f"{where} is not JSON: {error}.", fix) from error
    if not isinstance(value, dict) or not isinstance(value.get("prompt"), str) or not value["prompt"]:
        raise SettingError(f"{where} has no prompt.", fix)
    return Case(str(value.get("id", where)), str(value.get("kind", "other")), value["prompt"])


def turned(chains: Sequence[int], turn: int) -> tuple[int, ...]:
    """The chains in the order of that turn: each comes first equally often."""
    start = turn % len(chains)
    return (*chains[start:], *chains[:start])


def measure(pair: Pair, plan: Plan, tell: Callable[[str, float], None] | None = None) -> Iterator[Run]:
    """Decode every case with every chain, `plan.repeat` times; one short reply a chain first, not counted.

    Args:
        pair: Open and idle.
        plan: What to decode.
        tell: Called with a stage and the share that is done, before each reply.

    Raises:
        PromptError: A prompt does not fit the context.
        SettingError: A chain is above what the pair can draft.
    """
    learnt = open_length(pair.backend)  # as in a chat: what was found is kept from reply to reply
    for chain in plan.chains:
        decode(pair, plan, plan.cases[0], chain, WARM_UP_TOKENS, learnt)
    total = plan.repeat * len(plan.cases) * len(plan.chains)
    done = 0
    for repeat in range(plan.repeat):
        for number, case in enumerate(plan.cases):
            for chain in turned(plan.chains, repeat + number):
                if tell is not None:
                    tell(f"{case.id}, chain {chain_name(chain)}", done / total)
                usage, rounds = decode(pair, plan, case, chain, plan.max_new_tokens, learnt)
                done += 1
                yield Run(case, repeat, chain, usage, rounds)


def chain_name(chain: int) -> str:
    """As people and programs read it."""
    return "auto" if chain == AUTO else str(chain)


def decode(
    pair: Pair, plan: Plan, case: Case, chain: int, limit: int, learnt: Length
) -> tuple[Usage, tuple[Round, ...]]:
    """Decode one reply of at most `limit` tokens in a conversation of its own: what it used, and its rounds."""
    user = Message("user", case.prompt)
    messages = (Message("system", plan.system), user) if plan.system else (user,)
    rounds: list[Round] = []
    session = Session(pair, learnt)  # a new one knows of no caches: every reply prefills its whole prompt
    for event in session.reply(Say(messages, Controls(max(chain, 0), plan.sampling, chain == AUTO), limit)):
        match event:
            case Prefill():
                pass
            case Round():
                rounds.append(event)
            case Finished():
                return event.usage, tuple(rounds)
    raise AssertionError("a reply ends with Finished")
