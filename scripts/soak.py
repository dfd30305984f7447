"""A long chat on the scripted pair with random stops, edits, and changes of chain and temperature.

    python scripts/soak.py --turns 200 --seed 1

After every turn the caches must stand for the transcript's ids and a fresh session must write the same reply; at the
end the memory that Python holds must be what it was after the first fifth, within 2 %. Exit code 1 where one fails.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
from dataclasses import dataclass

from eagle3chat.engine.events import Finished, Round
from eagle3chat.engine.pair import Pair, open_pair
from eagle3chat.engine.requests import Controls, Message, PairOptions, Say
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.session import Session

CONTEXT = 1024
GROWTH = 0.02
WARM = 5  # the first one of so many parts of the turns does not count: caches of tokens fill


class SoakError(Exception):
    """Something that must hold does not."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a soak came to."""

    turns: int
    stopped: int  # replies that were stopped
    edits: int
    growth: float  # of the blocks of memory, as a share


def soak(turns: int, seed: int) -> Outcome:
    """Chat; returns what was done.

    Raises:
        SoakError: The caches or a text are not what they must be.
    """
    rng = random.Random(seed)
    pair = open_pair(PairOptions(backend="scripted", context=CONTEXT))
    fresh_pair = open_pair(PairOptions(backend="scripted", context=CONTEXT))
    session = Session(pair)
    messages: list[Message] = []
    say: Say | None = None
    stopped = edits = base = 0
    try:
        for turn in range(turns):
            messages, edited = _edited(messages, rng)
            edits += edited
            if len(pair.prompt_ids(Say((*messages, Message("user", "x")), Controls()))) > CONTEXT // 2:
                messages = []
            say = Say((*messages, Message("user", f"Turn {turn} {rng.random()}")), _controls(rng), rng.randint(1, 60))
            ids, was_stopped = _turn(session, pair, fresh_pair, say, rng)
            stopped += was_stopped
            messages = [*say.messages, Message("assistant", pair.codec.decode(ids), tuple(ids))]
            if turn + 1 == max(turns // WARM, 1):
                messages, say, ids = [], None, []  # nothing of the chat counts
                base = _held(session, Session(fresh_pair))
        messages, say, ids = [], None, []
        return Outcome(turns, stopped, edits, _held(session, Session(fresh_pair)) / base - 1)
    finally:
        pair.close()
        fresh_pair.close()


def _controls(rng: random.Random) -> Controls:
    heat = rng.choice([0.0, 0.5, 0.9])
    repetition = rng.choice([1.0, 1.0, 1.2])
    return Controls(rng.randint(0, 6), Sampling(temperature=heat, seed=rng.randrange(99), repetition=repetition))


def _edited(messages: list[Message], rng: random.Random) -> tuple[list[Message], bool]:
    """Sometimes the conversation goes on from an earlier place."""
    if messages and rng.random() < 0.2:
        return messages[: 2 * rng.randrange(len(messages) // 2)], True
    return messages, False


def _turn(session: Session, pair: Pair, fresh_pair: Pair, say: Say, rng: random.Random) -> tuple[list[int], bool]:
    """One reply, checked; its ids without a stop token, and whether it was stopped."""
    stop_at = rng.randint(1, 12) if rng.random() < 0.3 else None
    prompt = pair.prompt_ids(say)
    ids: list[int] = []
    rounds = 0
    finished: Finished | None = None
    for event in session.reply(say):
        if isinstance(event, Round):
            ids += [token.id for token in event.tokens]
            rounds += 1
            if list(session.committed) != prompt + ids:
                raise SoakError(f"after round {rounds} the caches are not the transcript")
            if rng.random() < 0.2:
                session.controls = Controls(rng.randint(0, 6), say.controls.sampling)  # the text does not depend on it
            if rounds == stop_at:
                session.cancel()
        if isinstance(event, Finished):
            finished = event
    if finished is None:
        raise SoakError("a reply did not finish")
    again = _plain(fresh_pair, say)
    if again[: len(ids)] != ids or (finished.reason != "cancelled" and again != ids):
        raise SoakError("a fresh session writes another text")
    if finished.reason == "stop" and ids and ids[-1] in pair.stops.ids:
        ids.pop()
    return ids, finished.reason == "cancelled"


def _plain(pair: Pair, say: Say) -> list[int]:
    """The whole reply's ids of a session that knows nothing yet."""
    events = Session(pair).reply(Say(say.messages, Controls(0, say.controls.sampling), say.max_new_tokens))
    return [token.id for event in events if isinstance(event, Round) for token in event.tokens]


def _held(*sessions: Session) -> int:
    """Blocks of memory that Python holds after a chat that is always the same, so that the caches of tables hold the
    same rows."""
    for seed in range(6):
        for session in sessions:
            for _ in session.reply(Say((Message("user", "The same"),), Controls(3, Sampling(0.8, seed=seed)), 80)):
                pass
    gc.collect()
    return sys.getallocatedblocks()


def main() -> int:
    """Soak and print; the exit code."""
    parser = argparse.ArgumentParser(description="A long chat on the scripted pair.")
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    try:
        outcome = soak(args.turns, args.seed)
    except SoakError as error:
        print(f"failed: {error}")
        return 1
    done = f"{outcome.turns} turns, {outcome.stopped} stopped, {outcome.edits} edits"
    print(f"{done}; memory {outcome.growth:+.2%} since turn {max(args.turns // WARM, 1)}")
    return 0 if abs(outcome.growth) <= GROWTH else 1


if __name__ == "__main__":
    sys.exit(main())
