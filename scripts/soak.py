"""A long chat with random stops, edits, and changes of chain and temperature, on the scripted pair or a real one.

    python scripts/soak.py --turns 200 --seed 1
    python scripts/soak.py --turns 30 --bundle default --dtype float32    # the built-in pair; or a bundle's directory

After every round the caches must stand for the transcript's ids, after every turn a fresh session must write the same
reply. (In other types than float32 a row that was read in a long pass may differ from one that a round left in the
caches by a rounding, so there such replies are counted, no more.) What Python holds (in blocks), and with a real pair
also what the process holds (bytes in memory), must at the end be what it was after the first fifth, within 2 %. Exit
code 1 where one fails.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import random
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from eagle3chat.engine.events import Finished, Round
from eagle3chat.engine.pair import Pair, open_pair
from eagle3chat.engine.requests import Controls, DType, Message, PairOptions, Say
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.session import Session

CONTEXT = 1024
GROWTH = 0.02
WARM = 5  # the first one of so many parts of the turns does not count: caches of tokens fill
SCRIPTED = PairOptions(backend="scripted", context=CONTEXT)
ASKED = ("Why is the sky blue?", "Write a line of Python.", "Name three rivers.", "Go on.", "Say that in French.")


class SoakError(Exception):
    """Something that must hold does not."""


class PartedError(SoakError):
    """A fresh session writes another text."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One reply."""

    ids: tuple[int, ...]  # without a stop token
    rounds: int
    stopped: bool


@dataclass(frozen=True, slots=True)
class Held:
    """Memory."""

    blocks: int  # that Python holds
    resident: int  # bytes of the process; 0: not looked at

    def growth(self, now: Held) -> tuple[float, float]:
        """What came to them since, as shares."""
        return now.blocks / self.blocks - 1, now.resident / self.resident - 1 if self.resident else 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a soak came to."""

    turns: int
    stopped: int  # replies that were stopped
    edits: int
    rounds: int
    parted: int  # replies that a fresh session writes otherwise, where that may be
    growth: float  # of the blocks of memory, as a share
    resident: float  # of the bytes, as a share; 0: not looked at


def soak(turns: int, seed: int, options: PairOptions = SCRIPTED) -> Outcome:
    """Chat; returns what was done.

    Raises:
        SoakError: The caches or a text are not what they must be.
    """
    rng = random.Random(seed)
    pair, fresh_pair = open_pair(options), open_pair(options)
    session = Session(pair)
    messages: list[Message] = []
    say: Say | None = None
    done: Turn | None = None
    base: Held | None = None
    stopped = edits = rounds = parted = 0
    exact = options.backend == "scripted" or options.dtype == "float32"
    try:
        for turn in range(turns):
            messages, edited = _edited(messages, rng)
            edits += edited
            if len(pair.prompt_ids(Say((*messages, Message("user", "x")), Controls()))) > CONTEXT // 2:
                messages = []
            asked = Message("user", f"Turn {turn} {rng.random()}. {rng.choice(ASKED)}")
            say = Say((*messages, asked), _controls(rng, pair), rng.randint(1, 60))
            done = _turn(session, pair, say, rng)
            try:
                _compare(done, fresh_pair, say)
            except PartedError:
                if exact:
                    raise
                parted += 1
            stopped += done.stopped
            rounds += done.rounds
            messages = [*say.messages, Message("assistant", pair.codec.decode(done.ids), done.ids)]
            if turn + 1 == max(turns // WARM, 1):
                messages, say, done = [], None, None  # nothing of the chat counts
                base = _held(session, fresh_pair, options)
        messages, say, done = [], None, None
        assert base is not None
        growth, resident = base.growth(_held(session, fresh_pair, options))
        return Outcome(turns, stopped, edits, rounds, parted, growth, resident)
    finally:
        pair.close()
        fresh_pair.close()


def _chain(rng: random.Random, pair: Pair) -> int:
    return rng.randint(0, min(6, pair.backend.max_chain))


def _controls(rng: random.Random, pair: Pair) -> Controls:
    heat = rng.choice([0.0, 0.5, 0.9])
    repetition = rng.choice([1.0, 1.0, 1.2])
    sampling = Sampling(temperature=heat, seed=rng.randrange(99), repetition=repetition)
    return Controls(_chain(rng, pair), sampling, auto=rng.random() < 0.2)


def _edited(messages: list[Message], rng: random.Random) -> tuple[list[Message], bool]:
    """Sometimes the conversation goes on from an earlier place."""
    if messages and rng.random() < 0.2:
        return messages[: 2 * rng.randrange(len(messages) // 2)], True
    return messages, False


def _turn(session: Session, pair: Pair, say: Say, rng: random.Random) -> Turn:
    """One reply, its caches checked at every round."""
    stop_at = rng.randint(1, 12) if rng.random() < 0.3 else None
    prompt = pair.prompt_ids(say)
    ids: list[int] = []
    rounds = 0
    finished: Finished | None = None
    for event in session.reply(say):
        if isinstance(event, Round):
            ids += [token.id for token in event.tokens]
            rounds += 1
            if list(session.committed) != prompt + ids or _rows(pair) not in (None, len(prompt) + len(ids) - 1):
                raise SoakError(f"after round {rounds} the caches are not the transcript")
            if rng.random() < 0.2:
                session.controls = Controls(_chain(rng, pair), say.controls.sampling)  # the text does not depend on it
            if rounds == stop_at:
                session.cancel()
        if isinstance(event, Finished):
            finished = event
    if finished is None:
        raise SoakError("a reply did not finish")
    if finished.reason == "stop" and ids and ids[-1] in pair.stops.ids:
        ids.pop()
    return Turn(tuple(ids), rounds, finished.reason == "cancelled")


def _compare(done: Turn, fresh_pair: Pair, say: Say) -> None:
    """Raise PartedError unless a session that knows nothing yet writes the same."""
    again = _plain(fresh_pair, say)
    if done.stopped:
        again = again[: len(done.ids)]
    elif again and again[-1] in fresh_pair.stops.ids:
        again.pop()
    if tuple(again) != done.ids:
        raise PartedError("a fresh session writes another text")


def _rows(pair: Pair) -> int | None:
    """Rows of the target's cache, where the backend has one that can be looked at."""
    cache = getattr(getattr(pair.backend, "_target", None), "cache", None)
    return getattr(cache, "rows", None)


def _plain(pair: Pair, say: Say) -> list[int]:
    """The whole reply's ids of a session that knows nothing yet."""
    events = Session(pair).reply(Say(say.messages, Controls(0, say.controls.sampling), say.max_new_tokens))
    return [token.id for event in events if isinstance(event, Round) for token in event.tokens]


def _held(session: Session, fresh_pair: Pair, options: PairOptions) -> Held:
    """Memory after a chat that is always the same, so that the caches of tables hold the same rows; with a real pair
    it fills the context once, whose pages count from then on."""
    real = options.backend != "scripted"
    long = "word " * (CONTEXT - 200) if real else "The same"
    for one in (session, Session(fresh_pair)):
        for seed, words in enumerate((long, *["The same"] * 5)):
            chain = min(3, fresh_pair.backend.max_chain)
            for _ in one.reply(Say((Message("user", words),), Controls(chain, Sampling(0.8, seed=seed)), 80)):
                pass
    gc.collect()
    return Held(sys.getallocatedblocks(), _resident() if real else 0)


def _resident() -> int:
    """Bytes of this process in memory, once what was freed is given back; 0 where the system does not say."""
    with suppress(OSError, AttributeError):  # glibc's alone
        ctypes.CDLL(None).malloc_trim(0)
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _options(bundle: str, dtype: DType) -> PairOptions:
    if not bundle:
        return SCRIPTED
    if bundle == "default":
        from eagle3chat.engine.default_pair import default_bundle

        bundle = str(default_bundle())
    return PairOptions(bundle=bundle, context=CONTEXT, dtype=dtype)


def main() -> int:
    """Soak and print; the exit code."""
    parser = argparse.ArgumentParser(description="A long chat with random stops, edits and changes.")
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16", "int4"), default="auto")
    parser.add_argument("--bundle", default="", help='a bundle, or "default" (without: the scripted pair)')
    args = parser.parse_args()
    start = time.process_time()
    try:
        outcome = soak(args.turns, args.seed, _options(args.bundle, args.dtype))
    except SoakError as error:
        print(f"failed: {error}")
        return 1
    print(f"{outcome.turns} turns, {outcome.rounds} rounds, {outcome.stopped} stopped, {outcome.edits} edits; ", end="")
    print(f"{outcome.parted} texts parted; ", end="")
    resident = f", resident {outcome.resident:+.2%}" if args.bundle else ""
    since = f"since turn {max(args.turns // WARM, 1)}; {time.process_time() - start:.0f} s of CPU time"
    print(f"blocks of memory {outcome.growth:+.2%}{resident} {since}")
    return 0 if max(abs(outcome.growth), abs(outcome.resident)) <= GROWTH else 1


if __name__ == "__main__":
    sys.exit(main())
