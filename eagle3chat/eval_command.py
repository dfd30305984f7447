"""`eagle3chat eval`: which way of drafting has how many tokens accepted, by temperature and kind of prompt.

Replies are decoded by the target alone; how many rounds each way would have taken follows from its logits. Knows flags
and streams; the last line on stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path

from eagle3chat.bench import load_cases
from eagle3chat.engine.bundle import open_bundle
from eagle3chat.engine.errors import SettingError, TrainError
from eagle3chat.engine.sampling import Sampling
from eagle3chat.opening import Progress, bundle_of, open_wished
from eagle3chat.train.evaluation import Question, document, table
from eagle3chat.ui.clean import clean_line
from eagle3chat.wishes import flag, read_wishes

OWN = ("sharpness", "chain", "top_p", "seed")  # mean lists, or something else than in a request
MAX_NEW_TOKENS = 96
CHAIN = 3
TEMPERATURES = (0.0, 0.8)
SHARPNESS = (1.0, 0.7, 0.4)


def evaluate(args: argparse.Namespace) -> int:
    """Measure and print; the exit code.

    Raises:
        Eagle3Error: Anything that the person can mend.
    """
    question = read_question(args)
    wishes = bundle_of(read_wishes(_without(args, OWN), max_new_tokens=MAX_NEW_TOKENS), sys.stderr)
    if wishes.options.backend not in ("auto", "torch"):
        raise SettingError("eval runs on the torch backend only.", "Leave --backend out.")
    bundle = open_bundle(Path(wishes.options.bundle))
    if bundle.manifest.draft is None:
        raise TrainError(f"{bundle.manifest.name} has no draft.", "Name a bundle with one.")
    from eagle3chat.train.torch_evaluation import evaluate as find

    pair = open_wished(wishes, sys.stderr)
    progress = Progress(sys.stderr, quiet=not sys.stderr.isatty())
    try:
        findings = list(find(pair, bundle, question, progress))
    finally:
        progress.done()
        pair.close()
    if not flag(args, "json"):
        info = pair.info
        print(clean_line(f"pair     {info.model} with {info.draft}, replies in {info.dtype}, judged in float32"))
        print(f"prompts  {len(question.cases)}, at most {question.max_new_tokens} tokens, chain {question.chain}\n")
        for line in table(findings, question.chain):
            print(clean_line(line))
    found = {"pair": dataclasses.asdict(pair.info), "chain": question.chain, "prompts": len(question.cases)}
    print(json.dumps({**found, "findings": document(findings, question.chain)}, separators=(",", ":")), flush=True)
    return 0


def read_question(args: argparse.Namespace) -> Question:
    """What the flags ask.

    Raises:
        SettingError: A number is out of range, or the prompts cannot be read.
    """
    limit, file = flag(args, "limit"), flag(args, "prompts")
    if limit is not None and limit < 1:
        raise SettingError(f"A limit of {limit} measures nothing.", "Use --limit 1 or more.")
    top_p = flag(args, "top_p")
    question = Question(
        cases=load_cases(Path(os.path.expanduser(file)) if file else None, limit),
        chain=CHAIN if flag(args, "chain") is None else flag(args, "chain"),
        temperatures=flag(args, "temperatures") or TEMPERATURES,
        sharpness=flag(args, "sharpness") or SHARPNESS,
        top_p=1.0 if top_p is None else top_p,
        seed=flag(args, "seed") or 0,
        max_new_tokens=MAX_NEW_TOKENS if flag(args, "max_new_tokens") is None else flag(args, "max_new_tokens"),
    )
    if question.chain < 1:
        raise SettingError(f"A chain of {question.chain} has nothing accepted.", "Use --chain 1 or more.")
    if question.max_new_tokens < 1:
        raise SettingError(f"A reply of at most {question.max_new_tokens} tokens is empty.", "Use 1 or more.")
    for temperature in question.temperatures:  # values that a request would refuse are refused before anything loads
        for sharpness in question.sharpness:
            Sampling(temperature=temperature, sharpness=sharpness, top_p=question.top_p, seed=question.seed)
    return question


def _without(args: argparse.Namespace, names: tuple[str, ...]) -> argparse.Namespace:
    return argparse.Namespace(**{name: value for name, value in vars(args).items() if name not in names})
