"""Checks a draft by a program that we did not write: llama.cpp converts it, drafts with it, and both are compared.

    python scripts/peer_check.py --llama-cpp SOURCES --bin BUILD/bin --prompts FILE [--draft DIR] [--target FILE.gguf]
                                 [--type F32] [--dtype float32] [--chain 3] [--max-new-tokens 96] [--threads 1]

The draft is a directory in a public layout, made dense first where it is packed; SOURCES/convert_hf_to_gguf.py makes a
GGUF of it (with this Python, which needs torch and transformers), llama-quantize one of the target in --type, and
llama-speculative-simple decodes every prompt greedily. Both programs get the same text of the prompt, and the count of
its tokens is compared.

Acceptance is accepted / drafted on both sides, over rounds with a whole chain before the limit, and so is tau, 1 +
accepted / rounds. Where the draft proposes the end of the text in the middle of a chain and the target says it too,
llama.cpp does not count it as accepted; ours is counted the same way here. What llama.cpp prints itself (n_drafted,
n_accept) is summed beside. Rounds that begin at the same token of the same text are compared draft by draft.
Exit code 1 when the two acceptances are further apart than --within.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle3chat.bench import Case, load_cases
from eagle3chat.engine.default_pair import draft_directory, find_target
from eagle3chat.engine.draft_quantization import QUANTIZATION
from eagle3chat.engine.events import Finished, Round
from eagle3chat.engine.export import export_bundle
from eagle3chat.engine.pair import Pair, open_pair
from eagle3chat.engine.requests import Controls, Message, PairOptions, Say
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.session import Session
from eagle3chat.train.torch_packing import pack

CANDIDATE = re.compile(r"draft candidate +0, pos +\d+: +(\d+) ")
VERDICT = re.compile(r"accepted (\d+)/(\d+) draft tokens, the last target token is: \((\d+)\)")
PRINTED = re.compile(r"\b(n_drafted|n_accept) += (\d+)")
PROMPT = re.compile(r"encoded +(\d+) tokens")


@dataclass(frozen=True, slots=True)
class Drafted:
    """One round of either program."""

    start: int  # tokens of the reply before it
    drafted: tuple[int, ...]
    accepted: int  # by llama.cpp's rule
    tokens: tuple[int, ...]  # emitted


@dataclass(frozen=True, slots=True)
class Reply:
    """One greedy reply."""

    prompt_tokens: int
    rounds: tuple[Drafted, ...]
    printed: tuple[int, int] = (0, 0)  # drafted, accepted, as the program itself adds them up

    @property
    def tokens(self) -> tuple[int, ...]:
        """Its ids."""
        return tuple(token for r in self.rounds for token in r.tokens)


def read_log(text: str) -> Reply:
    """A reply from what llama-speculative-simple -v says.

    Raises:
        SystemExit: It says something else.
    """
    rounds: list[Drafted] = []
    drafted: list[int] = []
    for line in text.splitlines():
        if (candidate := CANDIDATE.search(line)) is not None:
            drafted.append(int(candidate[1]))
        elif (verdict := VERDICT.search(line)) is not None:
            accepted, count, last = (int(group) for group in verdict.groups())
            offered = tuple(drafted[:count])
            start = rounds[-1].start + len(rounds[-1].tokens) if rounds else 0
            rounds.append(Drafted(start, offered, accepted, (*offered[:accepted], last)))
            drafted = []
    counts, prompt = dict(PRINTED.findall(text)), PROMPT.search(text)
    if not rounds or prompt is None or len(counts) < 2:
        raise SystemExit(f"llama-speculative-simple said nothing of its rounds:\n{text[-2000:]}")
    return Reply(int(prompt[1]), tuple(rounds), (int(counts["n_drafted"]), int(counts["n_accept"])))


def theirs(args: argparse.Namespace, target: Path, draft: Path, prompt: str) -> Reply:
    """The reply of llama.cpp."""
    command = [args.bin / "llama-speculative-simple", "-m", target, "-md", draft, "--spec-type", "draft-eagle3"]
    command += ["--spec-draft-n-max", args.chain, "--temp", 0, "-n", args.max_new_tokens, "-t", args.threads]
    command += ["-c", 2048, "--no-escape", "-v", "-p", prompt]
    done = subprocess.run([str(word) for word in command], capture_output=True, check=False)
    return read_log(done.stderr.decode("utf-8", "replace") + done.stdout.decode("utf-8", "replace"))


def ours(pair: Pair, say: Say) -> Reply:
    """Our reply, its acceptance by llama.cpp's rule."""
    rounds: list[Drafted] = []
    prompt_tokens = start = 0
    for event in Session(pair).reply(say):
        if isinstance(event, Round):
            drafted, tokens = tuple(t.id for t in event.drafted), tuple(t.id for t in event.tokens)
            ends = event.accepted > 0 and event.accepted < len(drafted) and tokens[-1] in pair.stops.ids
            silent = ends and event.own is None  # the draft's own end of the text, and more was drafted behind it
            rounds.append(Drafted(start, drafted, event.accepted - silent, tokens))
            start += len(tokens)
        elif isinstance(event, Finished):
            prompt_tokens = event.usage.prompt_tokens
    return Reply(prompt_tokens, tuple(rounds))


def rendered(pair: Pair, case: Case) -> str:
    """The prompt as our template writes it, control tokens spelt out."""
    return "".join(piece.text for piece in pair.template.render((Message("user", case.prompt),)))


def convert(args: argparse.Namespace, bundle: Path, work: Path) -> tuple[Path, Path]:
    """GGUF files of the target and of the draft."""
    target, draft, directory = work / f"target-{args.type}.gguf", work / "draft.gguf", work / "target"
    directory.mkdir()
    for file in (bundle / "target/config.json", bundle / "tokenizer.json", bundle / "tokenizer_config.json"):
        (directory / file.name).write_bytes(file.read_bytes())
    converter = [sys.executable, args.llama_cpp / "convert_hf_to_gguf.py", args.draft, "--target-model-dir", directory]
    converter += ["--outtype", args.draft_type, "--outfile", draft]
    quantizer = [args.bin / "llama-quantize", "--allow-requantize", "--pure", args.target, target, args.type]
    path = {**os.environ, "PYTHONPATH": str(args.llama_cpp / "gguf-py")}
    for command in (converter, quantizer):
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=path, check=False)
        if done.returncode:
            raise SystemExit(f"{command[1]} failed:\n{done.stderr[-2000:]}")
    return target, draft


def whole(reply: Reply, chain: int, limit: int) -> list[Drafted]:
    """The rounds that drafted a whole chain which the limit left alone."""
    return [r for r in reply.rounds if len(r.drafted) == chain and r.start + chain < limit]


def row(name: str, rounds: Sequence[Drafted]) -> tuple[str, float]:
    """A line of figures and the acceptance."""
    drafted, accepted = sum(len(r.drafted) for r in rounds), sum(r.accepted for r in rounds)
    places = max(len(r.drafted) for r in rounds)
    at = "  ".join(f"{sum(r.accepted > p for r in rounds) / len(rounds):.4f}" for p in range(places))
    rate = accepted / drafted
    return (
        f"{name:<10} {len(rounds):>6} {drafted:>8} {accepted:>9} {rate:>8.4f} {1 + accepted / len(rounds):>7.4f}  {at}",
        rate,
    )


def compare(args: argparse.Namespace, pair: Pair, target: Path, draft: Path) -> bool:
    """All prompts; whether the two agree."""
    mine: list[Drafted] = []
    their: list[Drafted] = []
    same = joint = equal = printed_drafted = printed_accepted = 0
    cases = load_cases(args.prompts, args.limit)
    for case in cases:
        say = Say((Message("user", case.prompt),), Controls(args.chain, Sampling()), args.max_new_tokens)
        own, other = ours(pair, say), theirs(args, target, draft, rendered(pair, case))
        if own.prompt_tokens != other.prompt_tokens:
            print(f"{case.id}: the prompt has {own.prompt_tokens} tokens here and {other.prompt_tokens} in llama.cpp")
            return False
        one, two = own.tokens[: args.max_new_tokens], other.tokens[: args.max_new_tokens]
        same += one == two
        at = {r.start: r for r in other.rounds if len(r.drafted) == args.chain}
        for r in whole(own, args.chain, args.max_new_tokens):
            if r.start in at and one[: r.start] == two[: r.start]:
                joint += 1
                equal += r.drafted == at[r.start].drafted
        mine += whole(own, args.chain, args.max_new_tokens)
        their += whole(other, args.chain, args.max_new_tokens)
        printed_drafted, printed_accepted = printed_drafted + other.printed[0], printed_accepted + other.printed[1]
        print(f"{case.id:<14} {'same text' if one == two else 'texts part'}", flush=True)
    print(f"\n{'':<10} rounds  drafted  accepted     rate     tau  accepted of rounds by place")
    (line, rate), (line_there, rate_there) = row("eagle3chat", mine), row("llama.cpp", their)
    print(f"{line}\n{line_there}")
    print(f"llama.cpp prints: {printed_accepted} of {printed_drafted}, {printed_accepted / printed_drafted:.4f}")
    apart = abs(rate - rate_there) / rate_there
    print(
        f"same text: {same} of {len(cases)}; same drafts: {equal} of {joint} rounds at the same place of the same text"
    )
    print(f"apart: {apart:.2%} of llama.cpp's rate")
    return apart <= args.within


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-cpp", type=Path, required=True, metavar="DIR", help="its sources, for the converter")
    parser.add_argument("--bin", type=Path, required=True, metavar="DIR", help="its programs")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="JSONL with id, prompt (default: the packaged)")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N prompts")
    parser.add_argument("--draft", type=Path, default=draft_directory(), help="default: the packaged one")
    parser.add_argument("--target", type=Path, default=find_target(), help="a GGUF; default: the built-in one")
    parser.add_argument("--type", default="F32", help="llama.cpp's type of the target: F32, BF16, F16, Q8_0, Q4_0")
    parser.add_argument("--draft-type", default="f32", help="and of the draft: f32, bf16, f16, q8_0")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "int4"), help="of ours")
    parser.add_argument("--chain", type=int, default=3)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--within", type=float, default=0.05, help="how far apart they may be (default: 0.05)")
    return parser.parse_args()


def main() -> int:
    """Run the check."""
    args = arguments()
    with tempfile.TemporaryDirectory(prefix="peer-check-") as name:
        work = Path(name)
        if QUANTIZATION in json.loads((args.draft / "config.json").read_text()):
            args.draft = pack(args.draft, work / "dense", dense=True)  # llama.cpp's converter reads plain weights
        bundle = export_bundle(args.target, args.draft, work / "bundle", chain=args.chain)
        target, draft = convert(args, bundle, work)
        pair = open_pair(PairOptions(str(bundle), dtype=args.dtype, threads=args.threads))
        print(json.dumps({"draft": str(args.draft), "ours": args.dtype, "llama.cpp": f"{args.type} {args.draft_type}"}))
        try:
            return 0 if compare(args, pair, target, draft) else 1
        finally:
            pair.close()


if __name__ == "__main__":
    sys.exit(main())
