"""A chat of ten turns in tmux, with all that may happen in one; the transcript is looked at after each step.

    python scripts/tmux_trial.py                        the built-in pair
    python scripts/tmux_trial.py -- --model BUNDLE      any other; what is behind -- goes to eagle3chat

Stops, regenerates, edits, forks, changes chain and temperature in mid-reply, kills the worker and then the screen with
SIGKILL, and goes on. Needs tmux. Nothing is kept: transcripts are in a temporary directory. Exit code 1 where a step
is not what it must be.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from eagle3chat.engine.errors import TranscriptError
from eagle3chat.transcript_codec import Conversation, Reply
from eagle3chat.transcript_line import Exchange, exchanges
from eagle3chat.transcript_read import load

SIZE = ("-x", "120", "-y", "40")
SOCKET = f"trial-{os.getpid()}"
PATIENCE = 120.0  # seconds for anything
TYPING = 0.3  # seconds between a line, its Enter and the next one
TRIES = 8
UNFLUSHED = 1.6  # seconds of a reply that may be lost: written once a second, and a drawing ahead of it
LONG = "Write a long story about a lighthouse keeper and the sea, with many chapters."


class TrialError(Exception):
    """A step is not what it must be."""


class Trial:
    """A chat in a tmux of its own.

    Args:
        home: Where transcripts and logs go.
        arguments: Of eagle3chat.
    """

    def __init__(self, home: Path, arguments: Sequence[str]) -> None:
        self._home = home
        self._arguments = arguments
        self._step = 0

    def tmux(self, *words: str) -> str:
        """Run a command of tmux; what it prints."""
        done = subprocess.run(["tmux", "-L", SOCKET, *words], capture_output=True, text=True, check=True)
        return done.stdout

    def open(self, *more: str) -> None:
        """Start the chat."""
        own = [f"{name}={self._home}" for name in ("XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME")]
        command = shlex.join(["env", *own, sys.executable, "-m", "eagle3chat", *self._arguments, *more])
        self.tmux("-f", "/dev/null", "new-session", "-d", "-s", "trial", *SIZE, command)

    def keys(self, *keys: str) -> None:
        """Press keys, as tmux names them."""
        self.tmux("send-keys", "-t", "trial", *keys)

    def type(self, text: str) -> None:
        """Write a line and send it."""
        self.tmux("send-keys", "-t", "trial", "-l", text)
        time.sleep(TYPING)  # an Enter in one read with what is behind it makes a line, as in a paste
        self.keys("Enter")
        time.sleep(TYPING)

    def shown(self) -> str:
        """The screen."""
        return self.tmux("capture-pane", "-t", "trial", "-p") if self.running else ""

    @property
    def running(self) -> bool:
        """Whether the chat is there."""
        return not subprocess.run(["tmux", "-L", SOCKET, "has-session"], capture_output=True, check=False).returncode

    @property
    def pid(self) -> int:
        """The screen's process."""
        return int(self.tmux("list-panes", "-t", "trial", "-F", "#{pane_pid}"))

    @property
    def worker(self) -> int:
        """The worker's process."""
        lists = [path.read_text() for path in Path(f"/proc/{self.pid}/task").glob("*/children")]
        return int(" ".join(lists).split()[0])

    def conversation(self) -> Conversation:
        """The transcript that was begun last."""
        return load(max((self._home / "eagle3chat" / "transcripts").glob("*.jsonl"), key=lambda path: path.stem))

    def turns(self) -> list[Exchange]:
        """What counts of it."""
        try:
            return exchanges(self.conversation())
        except (TranscriptError, ValueError):
            return []  # not begun

    def last(self) -> Reply | None:
        """The reply that counts to the last message."""
        turns = self.turns()
        return turns[-1].reply if turns else None

    def done(self, turns: int, replies: int = 1) -> bool:
        """Whether so many turns are complete, the last one with so many replies."""
        found = self.turns()
        whole = bool(found) and all(reply.finished for reply in found[-1].replies)
        return len(found) == turns and whole and len(found[-1].replies) == replies

    def until(self, what: str, true: Callable[[], object]) -> None:
        """Wait until something holds.

        Raises:
            TrialError: It does not.
        """
        end = time.monotonic() + PATIENCE
        while not true():
            if time.monotonic() > end:
                raise TrialError(f"{what}: it does not come\n{self.shown() if self.running else 'the screen is gone'}")
            time.sleep(0.1)

    def begin(self) -> None:
        """Send a message and wait until its reply streams; where the model has soon nothing more to say, again."""
        before = len(self.turns())
        for _ in range(TRIES):
            self.type(LONG)
            self.until("a reply", lambda: len(self.turns()) == before + 1 and (r := self.last()) and len(r.rounds))
            if (reply := self.last()) and not reply.finished:
                return
            self.type("/delete")
            self.until("its end", lambda: len(self.turns()) == before)
        raise TrialError("the model says nothing that is long enough")

    def streaming(self, rounds: int = 1) -> None:
        """Wait until rounds of an unfinished reply are in the transcript."""
        self.until("a reply streams", lambda: (r := self.last()) and not r.finished and len(r.rounds) >= rounds)

    def tail(self) -> str:
        """The letters of the last row of the reply that streams."""
        above = self.shown().split(" rounds ─")[0].split("\n")[:-1]
        rows = [letters for row in above if (letters := letters_of(row))]
        return rows[-1]

    def tell(self, what: str) -> None:
        """A step is done."""
        self._step += 1
        print(f"{self._step:2}  {what}", flush=True)


def letters_of(text: str) -> str:
    """A text without all that a screen may change: white space, marks, lines."""
    return re.sub(r"[\W_]", "", text)


def check(true: object, what: str) -> None:
    """Raise TrialError unless something holds."""
    if not true:
        raise TrialError(what)


def whole(reply: Reply | None) -> Reply:
    """A reply that there must be, and whose text must be that of its rounds."""
    if reply is None:
        raise TrialError("there is no reply")
    said = "".join(r.text for r in reply.rounds) + (reply.finished.text if reply.finished else "")
    check(reply.text == said, "the text is not that of the rounds")
    check([r.index for r in reply.rounds] == list(range(len(reply.rounds))), "a round is missing")
    return reply


def first_turns(trial: Trial) -> None:
    """Sent while the model is opened; stopped; regenerated; changed in mid-reply."""
    trial.open()
    trial.until("the prompt", lambda: "›" in trial.shown() or ">" in trial.shown())
    trial.type("Say hello in one sentence.")
    trial.until("turn 1", lambda: trial.done(1))
    trial.tell(f"typed while the model was opened, answered: {whole(trial.last()).text[:50]!r}")
    trial.begin()
    trial.keys("Escape")
    trial.until("turn 2", lambda: trial.done(2))
    stopped = whole(trial.last())
    check(stopped.finished and stopped.finished.reason == "cancelled", "it was not stopped")
    trial.tell(f"stopped after {len(stopped.rounds)} rounds; what came stays")
    trial.keys("C-r")
    trial.until("another reply", lambda: trial.done(2, 2))
    other = whole(trial.last())
    check(other.text != stopped.text and other.controls.sampling.seed != stopped.controls.sampling.seed, "the same")
    trial.keys("C-l")
    trial.until("the first of them", lambda: trial.last() == stopped)
    trial.tell(f"regenerated: {len(other.rounds)} rounds with a seed of its own; ctrl+l shows the first again")
    trial.begin()
    for key in ("C-t", "F9", "F9"):
        trial.keys(key)
    rounds = len(whole_or_partial(trial))
    trial.streaming(rounds + 20)
    trial.type("/chain 0")
    trial.type("/temp 0.3")
    trial.until("turn 3", lambda: trial.done(3))
    mixed = whole(trial.last())
    chains = sorted({r.chain for r in mixed.rounds})
    heats = sorted({r.temperature for r in mixed.rounds})
    check(len(chains) > 1 and 0 in chains and len(heats) > 1, f"nothing changed in mid-reply: {chains} {heats}")
    trial.type("/chain 3")
    trial.tell(f"changed in mid-reply: chains {chains}, temperatures {heats}")


def whole_or_partial(trial: Trial) -> Sequence[object]:
    """The rounds of the last reply so far."""
    reply = trial.last()
    return reply.rounds if reply else ()


def edits(trial: Trial) -> None:
    """A message written anew, and a fork."""
    trial.type("/edit 2")
    trial.until("the message", lambda: "editing message 2" in trial.shown())
    trial.keys("C-u", "C-u")
    trial.type(" In one sentence: what is a lighthouse?")
    trial.until("the edited turn", lambda: trial.done(2))
    check(letters_of("what is a lighthouse") in letters_of(trial.turns()[1].said), "it was not edited")
    trial.tell("message 2 written anew: the turns after it are gone from the conversation")
    before = trial.conversation()
    trial.type("/fork")
    trial.until("a fork", lambda: trial.conversation().header.id != before.header.id)
    copied = [(turn.said, turn.reply.text if turn.reply else "") for turn in trial.turns()]
    check(copied == [(t.said, t.reply.text if t.reply else "") for t in exchanges(before)], "the fork differs")
    trial.type("Name three colours.")
    trial.until("turn 3 of the fork", lambda: trial.done(3))
    whole(trial.last())
    trial.tell("forked: the copy goes on, the old one stands")


def crashes(trial: Trial) -> None:
    """The worker killed, then the screen, each in mid-reply."""
    trial.begin()
    seen = trial.tail()
    os.kill(trial.worker, signal.SIGKILL)
    trial.until("the news", lambda: "killed by signal 9" in " ".join(trial.shown().split()))
    partial = whole(trial.last())
    check(not partial.finished and seen in letters_of(partial.text), "text of the killed worker's reply is lost")
    trial.keys("F5")
    trial.until("the worker", lambda: "context" in trial.shown().split("\n")[0])
    trial.type("Name three animals.")
    trial.until("a turn after the worker's death", lambda: trial.done(5))
    whole(trial.last())
    trial.tell(f"worker killed: {len(partial.rounds)} rounds kept, all that was seen; F5, and it goes on")
    trial.begin()
    seen = trial.tail()
    time.sleep(UNFLUSHED)
    worker = trial.worker
    os.kill(trial.pid, signal.SIGKILL)
    trial.until("the end of it", lambda: not trial.running)
    trial.until("the end of its worker", lambda: not Path(f"/proc/{worker}").exists())
    partial = whole(trial.last())
    check(not partial.finished and seen in letters_of(partial.text), f"{seen!r} was seen and is lost")
    said = [turn.said for turn in trial.turns()]
    trial.open("-c")
    trial.until("the conversation", lambda: "context" in trial.shown().split("\n")[0])
    check(letters_of(partial.text)[-30:] in letters_of(trial.shown()), "the screen does not show what was saved")
    check(said == [turn.said for turn in trial.turns()], "the conversation is another one")
    trial.tell(f"screen killed: {len(partial.rounds)} rounds kept, all but the unflushed second; -c goes on with them")


def last_turns(trial: Trial) -> None:
    """The rest of the ten, and the way out."""
    for number, text in enumerate(("Name three rivers.", "Count to five.", "Thank you.", "Good bye."), 7):
        trial.type(text)
        trial.until(f"turn {number}", lambda number=number: trial.done(number))  # type: ignore[misc]
        whole(trial.last())
    check(not trial.conversation().skipped, "the transcript has damaged lines")
    trial.keys("C-q")
    trial.until("the end", lambda: not trial.running)
    trial.tell(f"{len(trial.turns())} turns, and out")


def main() -> int:
    """Run the trial; the exit code."""
    parser = argparse.ArgumentParser(description="A chat of ten turns in tmux.")
    parser.add_argument("rest", nargs="*", help="arguments of eagle3chat")
    given = parser.parse_args().rest
    with tempfile.TemporaryDirectory() as name:
        trial = Trial(Path(name), [*given, "--max-new-tokens", "500", "--chain", "3", "--temperature", "0.8"])
        try:
            for part in (first_turns, edits, crashes, last_turns):
                part(trial)
        except TrialError as error:
            print(f"failed: {error}")
            return 1
        finally:
            subprocess.run(["tmux", "-L", SOCKET, "kill-server"], capture_output=True, check=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
