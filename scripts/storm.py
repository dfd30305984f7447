"""Storms of signals on the chat at random moments: while it starts, while a reply streams, while it is left.

    python scripts/storm.py --times 100 --seed 1

Each time the scripted pair's chat runs on a pty with a home of its own, and gets 1, 3 or 40 signals of one kind, or of
three kinds mixed. It must end as one of them asks (by the signal itself before the screen is there, and after it was
left), give the terminal back, and show no traceback; exit code 1 where one does not. More processes at a time (or
`nice`) make the moments longer.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "reliability"))

from terminals import Terminal

SIGNS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
SEEN = b"\x1b[?1049h"  # the screen was there
PATIENCE = 60.0


def storm(phase: str, signs: tuple[signal.Signals, ...], rng: random.Random) -> str:
    """One chat; what was wrong, or empty."""
    with tempfile.TemporaryDirectory() as home:
        terminal = Terminal(Path(home))
        try:
            _wait(terminal, _reach(terminal, phase, rng))
            _send(terminal, signs, rng)
            return _judge(terminal, terminal.end(PATIENCE), signs)
        except AssertionError:
            return "it does not end"
        finally:
            terminal.stop()


def _reach(terminal: Terminal, phase: str, rng: random.Random) -> float:
    """Go to the phase; how many seconds into it the storm comes."""
    if phase == "start":
        return rng.uniform(0.0, 3.0)
    terminal.until("chain", PATIENCE)
    if phase == "open":
        return rng.uniform(0.0, 0.3)
    terminal.send(b"Tell me\r")
    terminal.until("Esc stop", PATIENCE)
    if phase == "reply":
        return rng.uniform(0.0, 2.0)
    terminal.send(b"\x11")
    return rng.uniform(0.0, 0.6)


def _wait(terminal: Terminal, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        terminal.read(0.01)


def _send(terminal: Terminal, signs: tuple[signal.Signals, ...], rng: random.Random) -> None:
    gap = rng.choice([0.0, 0.001, 0.01])
    with suppress(ProcessLookupError):
        for _ in range(rng.choice([1, 3, 40])):
            os.kill(terminal.pid, rng.choice(signs))
            time.sleep(gap)


def _judge(terminal: Terminal, code: int, signs: tuple[signal.Signals, ...]) -> str:
    fits = {0, *(128 + sign for sign in signs), *(-sign for sign in signs)}
    if code not in fits:
        return f"exit code {code}"
    if b"Traceback" in terminal.wrote or b"Exception" in terminal.wrote:
        return "a traceback"
    return "" if SEEN not in terminal.wrote or terminal.restored() else "the terminal is not as it was"


def main() -> int:
    """Storm and print; the exit code."""
    parser = argparse.ArgumentParser(description="Storms of signals on the chat at random moments.")
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs ignore it, and so would the chat
    rng = random.Random(args.seed)
    seen: Counter[str] = Counter()
    for _ in range(args.times):
        phase = rng.choice(["start", "open", "reply", "leave"])
        signs = rng.choice([*((sign,) for sign in SIGNS), SIGNS])
        wrong = storm(phase, signs, rng)
        seen[f"{phase}: {wrong or 'in order'}"] += 1
    for line, count in sorted(seen.items()):
        print(f"{count:4} {line}")
    return 1 if any(not line.endswith("in order") for line in seen) else 0


if __name__ == "__main__":
    sys.exit(main())
