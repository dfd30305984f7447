"""What the full screen costs the engine: the same reply by `run` and in the chat, in turns.

    python scripts/screen_throughput.py --times 7 -- --model BUNDLE --dtype int4

Prints tokens a second of decoding, as the engine measured them, of each pair of runs, and the median of their ratios.
The text is the same, so the tokens are. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from screen_cost import LIMIT, Child

from eagle3chat.transcript_codec import Reply
from eagle3chat.transcript_read import load

PROMPT = "Plan a three-day visit to Rome for someone who loves history."
SETTINGS = ("--temperature", "0.8", "--seed", "5", "--max-new-tokens", "400")


def by_run(arguments: Sequence[str]) -> tuple[float, int]:
    """Tokens a second and tokens of `run`."""
    command = [sys.executable, "-m", "eagle3chat", "run", "--prompt", PROMPT, "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    stats = json.loads(done.stdout)["stats"]
    return stats["decode_token_per_sec"], stats["generated_tokens"]


def by_chat(arguments: Sequence[str]) -> tuple[float, int]:
    """The same of the chat on a terminal."""
    with tempfile.TemporaryDirectory() as name:
        child = Child(["-m", "eagle3chat", *arguments], Path(name))
        child.until(b"opened in")
        child.rest(1.0)
        child.type(PROMPT.encode())
        child.rest(0.5)
        child.type(b"\r")
        reply = None
        waited = 0
        while reply is None and waited < LIMIT:
            child.rest(1.0)
            waited += 1
            for path in (Path(name) / "eagle3chat" / "transcripts").glob("*.jsonl"):
                reply = next((t for t in load(path).turns if isinstance(t, Reply) and t.finished), None)
        child.type(b"\x11")
        child.end()
    if reply is None or reply.finished is None:
        raise SystemExit("no reply came")
    usage = reply.finished.usage
    return usage.generated_tokens / usage.decode_seconds, usage.generated_tokens


def main() -> None:
    """Measure in turns."""
    parser = argparse.ArgumentParser(description="What the full screen costs the engine.")
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--chain", default="2")
    parser.add_argument("rest", nargs="*", help="arguments of eagle3chat")
    args = parser.parse_args()
    arguments = [*SETTINGS, *args.rest, "--chain", args.chain]
    ratios = []
    for number in range(args.times):
        order = (by_run, by_chat) if number % 2 == 0 else (by_chat, by_run)
        found = {how: how(arguments) for how in order}
        (plain, tokens), (full, same) = found[by_run], found[by_chat]
        ratios.append(full / plain)
        print(
            f"run {plain:.1f} tok/s, chat {full:.1f} tok/s: {full / plain:.1%}   ({tokens} and {same} tokens)",
            flush=True,
        )
    print(f"median {median(ratios):.1%}")


if __name__ == "__main__":
    main()
