"""The grammar of `train` and `eval`: their flags, with help. Imports nothing but argparse's types.

As in `arguments`, what was not given is not set, and ranges are checked where the values are used.
"""

from __future__ import annotations

import argparse
from typing import Any


def add_train(parser: Any) -> None:
    """The flags of `eagle3chat train` and of its actions `data` and `pack`."""
    parser.set_defaults(action="draft")
    _add_target(parser)
    _add_data(parser)
    group = parser.add_argument_group("draft")
    group.add_argument("--output-dir", metavar="DIR", help="the draft to write; a run that was cut off goes on there")
    group.add_argument("--from", dest="start", metavar="DIR", help="a draft to begin as (default: the target's layer)")
    group.add_argument("--vocabulary", metavar="N", type=int, help="tokens that it can propose (default: 12288)")
    group.add_argument("--taps", metavar="B,B,B", type=_integers, help="tap boundaries of a new draft")
    group = parser.add_argument_group("run")
    group.add_argument("--epochs", metavar="N", type=float, help="passes over the data (default: 8)")
    group.add_argument("--minutes", metavar="N", type=float, help="end by the clock instead")
    group.add_argument("--until", metavar="HH:MM", help="end at a time instead")
    group.add_argument("--learning-rate", metavar="X", type=float, help="at its highest (default: 8e-4)")
    group.add_argument("--batch-tokens", metavar="N", type=int, help="reply tokens of an update (default: 2048)")
    group.add_argument("--depth", metavar="N", type=int, help="longest chain that is trained for (default: 4)")
    group.add_argument("--hard", metavar="X", type=float, help="weight of the target's best token (default: 0.3)")
    group.add_argument("--few-bits", metavar="X", type=float, help="share of the run, at its end, in 4 bits")
    group.add_argument("--held-out", metavar="X", type=float, help="share of the prompts (default: 0.03)")
    group.add_argument(
        "--checkpoint-seconds", dest="pace", metavar="N", type=float, help="between two, each measured (default: 300)"
    )
    group.add_argument("--workers", metavar="N", type=int, help="threads, each with its own part (default: all cores)")
    group.add_argument("--device", metavar="NAME", help="auto, cpu, cuda, cuda:N (default: cpu)")
    group.add_argument("--compute", choices=("bfloat16", "float32"), help="what it computes in (default: bfloat16)")
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    data = actions.add_parser(
        "data",
        help="only write conversations with the target",
        description="Write conversations with the target to a JSONL file; one that is there is continued.",
        argument_default=argparse.SUPPRESS,
    )
    data.set_defaults(action="data")
    _add_target(data)
    _add_data(data)
    data.add_argument("--output", required=True, metavar="FILE", help="the JSONL file")
    pack = actions.add_parser(
        "pack",
        help="only store a draft's head and MLP in 4 bits",
        description="Store a draft's head and MLP in 4 bits, as int4 pairs compute with them.",
        argument_default=argparse.SUPPRESS,
    )
    pack.set_defaults(action="pack")
    pack.add_argument("draft", metavar="DIR", help="the draft")
    pack.add_argument("--output-dir", required=True, metavar="DIR", help="a new directory")
    pack.add_argument("--dense", action="store_true", help="the other way round: make a packed draft dense")


def add_eval(group: Any) -> None:
    """The flags of `eagle3chat eval` that no other command has."""
    group.add_argument("--chain", metavar="K", type=int, help="drafted tokens a round (default: 3)")
    group.add_argument("--temperatures", metavar="T,T", type=_numbers, help="0 is greedy (default: 0,0.8)")
    group.add_argument("--sharpness", metavar="S,S", type=_numbers, help="to compare (default: 1,0.7,0.4)")
    group.add_argument("--prompts", metavar="FILE", help="JSONL with id, kind, prompt (default: the packaged ones)")
    group.add_argument("--limit", metavar="N", type=int, help="only the first N prompts")
    group.add_argument("--top-p", metavar="P", type=float, help="1 is off")
    group.add_argument("--seed", metavar="N", type=int, help="of the noise (default: 0)")
    group.add_argument("--json", action="store_true", help="only the JSON document")


def _add_target(parser: Any) -> None:
    section = parser.add_argument_group("target (default: the built-in one)")
    group = section.add_mutually_exclusive_group()
    group.add_argument("--model", metavar="DIR", help="a bundle directory; a draft in it is not used")
    group.add_argument("--target", metavar="PATH", help="a GGUF file or a Hugging Face directory")
    section.add_argument("--template", metavar="NAME|FILE", help="chat template of a --target that has none")


def _add_data(parser: Any) -> None:
    group = parser.add_argument_group("data (default: the target writes its own)")
    group.add_argument("--data", metavar="FILE", help="JSONL of prompts, or of conversations with reply_ids")
    group.add_argument("--conversations", metavar="N", type=int, help="how many the target writes (default: 2000)")
    group.add_argument("--max-new-tokens", metavar="N", type=int, help="tokens of a reply at most (default: 256)")
    group.add_argument("--temperatures", metavar="T,T", type=_numbers, help="of replies, in turn (default: 0,0.7,1)")
    group.add_argument("--seed", metavar="N", type=int, help="of the data and of the order (default: 0)")


def _integers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers such as 2,15,27") from None


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers such as 0,0.8") from None
