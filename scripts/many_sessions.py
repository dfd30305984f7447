"""How long the list of many transcripts takes: writes N of them into a temporary directory and times the index.

python scripts/many_sessions.py [N]        (default: 5000)
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from eagle3chat.engine.events import Finished, Info, Round, Token, Usage
from eagle3chat.engine.requests import Controls
from eagle3chat.transcript import Transcript
from eagle3chat.transcript_index import TranscriptIndex

SESSIONS = 5000
TURNS = 4
WORDS = ("memory", "target", "draft", "river", "window", "stone", "the", "of", "and", "a", "runs", "slowly", "café")
INFO = Info("Model", "D", "llama", "torch", "cpu", "int4", "chatml", 512, 8, 3, "", (), 1.0, 10)
USAGE = Usage(5, 0, 60, 60, 0, 0, 0, (), (), (), 0.1, 0.1, 0.2)


def write(directory: Path, rng: random.Random) -> None:
    """One conversation."""
    transcript = Transcript.create(directory)
    transcript.opened(INFO, Controls(0))
    for _ in range(TURNS):
        transcript.user(" ".join(rng.choices(WORDS, k=12)) + f" w{rng.randrange(10**6)}")
        for index in range(60):
            word = rng.choice(WORDS) + " "
            transcript.round(Round(index, index, 0, 0.0, (), 0, Token(1, word, None, 0.5), "plain", (), word, 0.01))
        transcript.reply(Finished("stop", "", "", USAGE))
    transcript.close()


def timed(name: str, work: Callable[[], object]) -> None:
    """Print how long something takes."""
    start = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - start
    print(f"{name:32} {seconds:7.3f} s   {result}")


def main() -> None:
    """Write, then measure."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else SESSIONS
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for _ in range(count):
            write(directory, rng)
        print(f"{count} transcripts, {sum(path.stat().st_size for path in directory.iterdir()) / 1e6:.0f} MB")
        with TranscriptIndex(directory) as index:
            timed("index made", index.refresh)
        with TranscriptIndex(directory) as index:
            timed("looked through again", index.refresh)
            timed("all listed", lambda: len(index.search()))
            timed("a word in all, 200 of them", lambda: len(index.search("mem", 200)))
            timed("a word in all, all of them", lambda: len(index.search("memory river")))
            timed("a rare word", lambda: len(index.search("w12345")))
            timed("a piece of text in none", lambda: len(index.search("日本", 200)))
            write(directory, rng)
            timed("one written meanwhile", index.refresh)


if __name__ == "__main__":
    main()
