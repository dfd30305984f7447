"""A chat whose model and errors write control codes. Run on a pty; with "hang" the reply never ends,
with "nomouse" the terminal keeps the mouse."""

from __future__ import annotations

import sys
from dataclasses import replace

from driving import CONTROLS
from fake_worker import INFO, FakeWorker, finished, rounds_of, stop_round, tokens_of

from eagle3chat.engine.events import Failed, Loading, Ready
from eagle3chat.engine.requests import PairOptions, Say
from eagle3chat.ui.run import run_chat

EVIL = (
    "start \x1b[2Jcleared \x1b]0;OWNED\x07title \x9b31mc1 \x9d0;OWNED\x9c \x1b[?1003hmouse \u202eoverride\u202c "
    "\x1bPdcs\x1b\\ \x7fdel \x00nul\n\n```\n\x1b[2J in a fence \x1b]52;c;T1dORUQ=\x07\n```\n\n"
    "plain 2*3*4 \x1b[2J block\n\n| a\x1b[2J | b |\n|---|---|\n| \x1b]0;OWNED\x07 | 2 |\n\nend of it"
)


class EvilWorker(FakeWorker):
    """Says what no terminal should obey."""

    def start(self) -> None:
        self.emit(Loading("reading \x1b]0;OWNED\x07weights", 0.5))
        self.emit(Ready(replace(INFO, model="model\x1b[2J", draft="draft\x1b]0;OWNED\x07", template="t\x9b2J")))

    def say(self, say: Say) -> None:
        rounds = rounds_of(tokens_of(EVIL))
        for round_ in [*rounds, stop_round(rounds)]:
            self.emit(round_)
        if "hang" in sys.argv:
            return
        self.emit(finished(rounds))
        self.emit(Failed("An error with \x1b[2J in it.", "And \x1b]0;OWNED\x07 in its fix."))

    def close(self, timeout: float = 3.0) -> None:
        print("worker closed", flush=True)


if __name__ == "__main__":
    mouse = "nomouse" not in sys.argv
    sys.exit(run_chat(PairOptions(), controls=CONTROLS, mouse=mouse, worker_factory=EvilWorker))
