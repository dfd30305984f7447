"""Checks on a real pair that speculation changes no token: chain 3 and an ever changing chain against chain 0.

    python scripts/lossless.py --prompts FILE [--model DIR] [--dtype float32] [--max-new-tokens 96]

For every prompt and temperature it decodes three times with one seed and compares token ids. In float32 they must
be equal. In bfloat16 and int4 a pass over several rows rounds differently from a pass over one, so a first difference
is allowed where the target was in two minds: its margin (the best minus the second of logits + noise) is printed.
Also checks that the rounds' texts, put together, are the decoded reply. Exit code 1 when a check fails.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from eagle3chat.engine.default_pair import default_bundle
from eagle3chat.engine.pair import Pair, open_pair
from eagle3chat.engine.requests import Controls, Message, PairOptions, Say
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.speculate import Step, speculate
from eagle3chat.engine.text import ReplyText

TIE = {"float32": 1e-3, "bfloat16": 0.6, "int4": 0.6}  # margins in logits; float32 must be equal, this only labels
SETTINGS = (
    ("greedy", Sampling()),
    ("T 0.8", Sampling(temperature=0.8, seed=7)),
    ("T 1.2 top-p 0.95", Sampling(temperature=1.2, top_p=0.95, seed=7)),
)


@dataclass(frozen=True, slots=True)
class Reply:
    """A decoded reply: its ids, what the target's margin was at each, and its text."""

    ids: tuple[int, ...]
    margins: tuple[float, ...]
    rounds: int
    text: str
    decoded: str


def decode(pair: Pair, prompt: list[int], chains: Iterable[int], sampling: Sampling, limit: int) -> Reply:
    """One reply, straight through the loop, with the next of `chains` in every round."""
    for _ in pair.backend.prefill(prompt, 0):
        pass
    turning = iter(chains)
    reader = ReplyText(pair.codec, pair.stops)
    text = ""

    def cut(offered: tuple[int, ...]) -> tuple[int, bool]:
        nonlocal text
        taken = reader.take(offered)
        text += taken.text
        return taken.kept, taken.ended

    def controls() -> Controls:
        return Controls(next(turning), sampling)

    steps: list[Step] = list(speculate(pair.backend, len(prompt), controls, cut, limit))
    text += reader.rest()
    ids = tuple(token for step in steps for token in step.tokens)
    margins = tuple(m for step in steps for m in step.verdict.margin[: len(step.tokens)])
    kept = ids[:-1] if steps[-1].finish == "stop" and ids[-1] in pair.stops.ids else ids
    return Reply(ids, margins, len(steps), text, pair.codec.decode(kept))


def first_difference(a: Reply, b: Reply) -> int | None:
    """The first place where two replies differ; None: they are equal."""
    pairs = itertools.zip_longest(a.ids, b.ids)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), None)


def check(pair: Pair, prompts: list[dict[str, str]], dtype: str, limit: int) -> bool:
    """All prompts under all settings; prints a line a setting and a line a difference."""
    good = True
    for name, sampling in SETTINGS:
        equal = total = tokens = rounds = 0
        started = time.perf_counter()
        for prompt in prompts:
            ids = pair.prompt_ids(Say((Message("user", prompt["prompt"]),), Controls()))
            plain = decode(pair, ids, itertools.repeat(0), sampling, limit)
            for label, chains in (
                ("chain 3", itertools.repeat(3)),
                ("changing", itertools.cycle((3, 0, 1, 5, 2, 0, 4))),
            ):
                reply = decode(pair, ids, chains, sampling, limit)
                total += 1
                if label == "chain 3":
                    tokens, rounds = tokens + len(reply.ids), rounds + reply.rounds
                if reply.text != reply.decoded:
                    good = False
                    print(f"  {prompt['id']}: the rounds' text is not the decoded reply")
                place = first_difference(plain, reply)
                if place is None:
                    equal += 1
                    continue
                margin = max(r.margins[place] for r in (plain, reply) if place < len(r.margins))
                tie = margin < TIE[dtype]
                good = good and tie and dtype != "float32"
                print(f"  {prompt['id']} {label}: differs at token {place}, margin {margin:.4f}{' (near tie)' * tie}")
        seconds = time.perf_counter() - started
        print(
            f"{dtype} {name}: {equal} of {total} replies equal to chain 0 token for token; "
            f"tau at chain 3 {tokens / rounds:.3f}; {seconds:.0f} s",
            flush=True,
        )
    return good


def main() -> int:
    """Run the check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a bundle directory; the default pair without it")
    parser.add_argument("--prompts", type=Path, required=True, help="JSONL with id and prompt")
    parser.add_argument("--dtype", action="append", choices=tuple(TIE), help="may be given several times")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--limit", type=int, help="only the first N prompts")
    options = parser.parse_args()
    lines = options.prompts.read_text(encoding="utf-8").splitlines()
    prompts = [json.loads(line) for line in lines if line.strip()][: options.limit]
    model = options.model or str(default_bundle())
    good = True
    for dtype in options.dtype or ("float32", "bfloat16", "int4"):
        pair = open_pair(PairOptions(bundle=model, dtype=dtype))
        good = check(pair, prompts, dtype, options.max_new_tokens) and good
        pair.close()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
