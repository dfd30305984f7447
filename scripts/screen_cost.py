"""What the screen costs: frames of a long reply, an idle chat, a cold start, a long transcript.

    python scripts/screen_cost.py frames        the UI thread's work between two idle points, while a reply streams
    python scripts/screen_cost.py idle          CPU of screen and worker while nothing happens
    python scripts/screen_cost.py start         from exec to the first frame in which a typed character stands
    python scripts/screen_cost.py open          the same for a transcript of 200,000 characters

Each runs the real screen on a pseudo-terminal of 120x34 that answers no questions. Times of work are CPU time of the
thread or the process, so that a busy machine changes them little. `frames` makes up its reply (2,000 tokens: a list of
100 items, a fence of 800 lines) and needs no model; the others take `--backend scripted` unless arguments for
eagle3chat follow.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import os
import pty
import select
import selectors
import signal
import struct
import sys
import tempfile
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

SIZE = (34, 120)  # rows, columns
TICKS = os.sysconf("SC_CLK_TCK")
ITEMS, CODE_LINES = 100, 800
CHARACTERS = 200_000
LIMIT = 120.0  # seconds for anything


class Child:
    """A program on a pseudo-terminal, with a home of its own.

    Args:
        arguments: Of Python.
        home: Where its transcripts and logs go.
    """

    def __init__(self, arguments: Sequence[str], home: Path) -> None:
        self.begun = time.monotonic()
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            own = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8", "XDG_DATA_HOME": str(home)}
            own |= {"XDG_STATE_HOME": str(home), "XDG_CONFIG_HOME": str(home), "XDG_CACHE_HOME": str(home)}
            os.execve(sys.executable, [sys.executable, *arguments], dict(os.environ) | own)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
        tty.setraw(self._fd)  # what is typed comes back from the program alone
        self.wrote = b""

    def read(self, seconds: float) -> bool:
        """Take what it writes; whether it is still there."""
        if not select.select([self._fd], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self._fd, 1 << 16)
        except OSError:
            return False
        self.wrote += data
        return bool(data)

    def until(self, text: bytes) -> float:
        """Wait until it has written something; seconds since it was started.

        Raises:
            SystemExit: It ended, or took too long.
        """
        while text not in self.wrote:
            if not self.read(0.002) or time.monotonic() - self.begun > LIMIT:
                raise SystemExit(f"{text!r} did not come:\n{self.wrote[-2000:]!r}")
        return time.monotonic() - self.begun

    def rest(self, seconds: float) -> None:
        """Let it run and throw away what it writes."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and self.read(left):
            self.wrote = self.wrote[-100:]

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._fd, keys)

    def end(self) -> None:
        """Wait for its end; after some seconds kill it."""
        end = time.monotonic() + 10
        while self.read(0.2):
            if time.monotonic() > end:
                os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._fd)


def cpu(pid: int) -> float:
    """Seconds of CPU of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def children(pid: int) -> list[int]:
    """Its child processes."""
    lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(each) for each in " ".join(lists).split()]


# Frames


@dataclass(slots=True)
class Stretch:
    """What the UI thread did between two idle points."""

    at: float  # monotonic seconds at its end
    work: float  # CPU seconds
    wall: float
    draws: int  # times that something went to the terminal


class Watched(selectors.DefaultSelector):
    """Knows when the event loop has nothing to do."""

    def __init__(self) -> None:
        super().__init__()
        self.stretches: list[Stretch] = []
        self.draws = 0
        self._cpu, self._wall = time.thread_time(), time.monotonic()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout == 0:
            return super().select(timeout)
        now = time.monotonic()
        self.stretches.append(Stretch(now, time.thread_time() - self._cpu, now - self._wall, self.draws))
        found = super().select(timeout)
        self._cpu, self._wall, self.draws = time.thread_time(), time.monotonic(), 0
        return found


def pieces() -> Iterator[str]:
    """The tokens of the reply: a paragraph, a list, a fence."""
    yield from "Here is a list of a hundred things , and then a long program .".replace(" ", "\0 ").split("\0")
    yield "\n\n"
    for number in range(ITEMS):
        yield from ("- ", f"thing {number}", f" is **worth** more than {number}", "\n")
    yield from ("\n", "```python\n")
    for number in range(CODE_LINES):
        yield from (f"    total_{number} = compute({number}, 'text') + 1", "  # a remark\n")
    yield from ("```\n", "\nThat", " is", " all", ".")


def child_frames(out: str, rate: float) -> None:
    """The chat with a worker that says `pieces` at a rate, in tokens a second."""
    from eagle3chat.engine.events import Event, Finished, Info, Prefill, Ready, Round, Token, Usage
    from eagle3chat.engine.requests import Controls, PairOptions, Say
    from eagle3chat.ui import run

    watched = Watched()
    spans: dict[str, float] = {}

    class Policy(asyncio.DefaultEventLoopPolicy):
        def new_event_loop(self) -> asyncio.AbstractEventLoop:
            return asyncio.SelectorEventLoop(watched)

    class Worker:
        def __init__(self, options: PairOptions, on_event: Callable[[Event], None]) -> None:
            self._emit = on_event

        def start(self) -> None:
            self._emit(
                Ready(Info("Model", "D", "llama", "torch", "cpu", "int4", "chatml", 8192, 6, 3, "", (), 1.0, 10))
            )

        def say(self, say: Say) -> None:
            threading.Thread(target=self._reply, daemon=True).start()

        def _reply(self) -> None:
            self._emit(Prefill(40, 40, 0))
            words = list(pieces())
            spans["from"], spans["tokens"] = time.monotonic(), len(words)
            for index in range(0, len(words), 2):
                time.sleep(max(0.0, spans["from"] + index / rate - time.monotonic()))
                drafted = tuple(Token(n, word, 0.8, 0.8) for n, word in enumerate((*words[index : index + 1], " the")))
                own = Token(9, words[index + 1], None, 0.6) if index + 1 < len(words) else None
                text = "".join(words[index : index + 2])
                kind = "correction" if own else None
                self._emit(Round(index // 2, 40 + index, 3, 0.8, drafted, 1, own, kind, drafted, text, 0.02))
            usage = Usage(40, 0, len(words), len(words) // 2, 0, 0, 0, (), (), (), 0.1, 1.0, 0.2)
            spans["end"] = time.monotonic()
            self._emit(Finished("stop", "", "", usage))
            time.sleep(2.0)
            spans["to"] = time.monotonic()
            os.kill(os.getpid(), signal.SIGTERM)

        def adjust(self, controls: Controls) -> None: ...
        def cancel(self) -> None: ...
        def restart(self) -> None: ...
        def close(self, timeout: float = 3.0) -> None: ...

    display = run.ChatApp._display

    def counted(self: run.ChatApp, *arguments: object) -> None:
        watched.draws += 1
        display(self, *arguments)  # type: ignore[arg-type]

    run.ChatApp._display = counted  # type: ignore[assignment,method-assign]
    asyncio.set_event_loop_policy(Policy())
    run.run_chat(PairOptions(), controls=Controls(3), worker_factory=Worker)
    kept = [s for s in watched.stretches if spans["from"] <= s.at <= spans["to"]]
    lines = [[s.at - spans["from"], s.work, s.wall, s.draws] for s in kept]
    Path(out).write_text(json.dumps({"spans": spans, "stretches": lines}))


def frames(rate: float) -> None:
    """Print the percentiles of the frames."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "frames.json"
        child = Child([__file__, "child", "--out", str(out), "--rate", str(rate)], Path(name))
        child.until(b"Model")
        child.type(b"Go on\r")
        while child.read(1.0):
            child.wrote = b""
        child.end()
        told = json.loads(out.read_text())
    stretches = [Stretch(*line) for line in told["stretches"]]
    seconds = told["spans"]["end"] - told["spans"]["from"]
    print(f"{told['spans']['tokens']:.0f} tokens in {seconds:.1f} s")
    drawn = [s for s in stretches if s.draws]
    _percentiles("frames that drew, CPU", [s.work for s in drawn])
    _percentiles("frames that drew, wall", [s.wall for s in drawn])
    _percentiles("all that is above 0.2 ms, CPU", [s.work for s in stretches if s.work > 0.0002])
    streaming = sum(s.work for s in stretches if s.at <= seconds)
    print(f"UI thread while it streams: {streaming / seconds:.1%} of a core")
    longest = sorted(stretches, key=lambda s: -s.work)[:8]
    print("longest:", ", ".join(f"{s.work * 1e3:.0f} ms at {s.at:.1f} s" for s in longest))


def _percentiles(name: str, seconds: list[float]) -> None:
    cuts = quantiles(seconds, n=100)
    p50, p95 = cuts[49] * 1e3, cuts[94] * 1e3
    print(f"{name:32} {len(seconds):5} of them   p50 {p50:.1f} ms   p95 {p95:.1f} ms   max {max(seconds) * 1e3:.1f} ms")


# The whole program


def idle(arguments: Sequence[str], seconds: float) -> None:
    """Print the CPU of an open chat, before and after a reply."""
    with tempfile.TemporaryDirectory() as name:
        child = Child(["-m", "eagle3chat", *arguments], Path(name))
        child.until(b"opened in")
        child.rest(5.0)
        _idle_shares("before a reply", child, seconds)
        child.type(b"Say something.\r")
        child.rest(10.0)
        _idle_shares("after a reply", child, seconds)
        child.type(b"\x11")
        child.end()


def _idle_shares(when: str, child: Child, seconds: float) -> None:
    pids = [("screen", child.pid), *(("worker", pid) for pid in children(child.pid))]
    before = [cpu(pid) for _, pid in pids]
    child.rest(seconds)
    spent = [cpu(pid) - was for (_, pid), was in zip(pids, before, strict=True)]
    shares = ", ".join(f"{name} {used / seconds:.2%}" for (name, _), used in zip(pids, spent, strict=True))
    print(f"idle {when}, {seconds:g} s: {shares}")


def start(arguments: Sequence[str], characters: int = 0, times: int = 5) -> None:
    """Print how long the prompt takes to be usable, after a transcript of so many characters if there are any."""
    for _ in range(times):
        with tempfile.TemporaryDirectory() as name:
            if characters:
                resumed = write_transcript(Path(name) / "eagle3chat" / "transcripts", characters)
            more = ["--resume", resumed] if characters else []
            child = Child(["-m", "eagle3chat", *arguments, *more], Path(name))
            child.type("\u2021".encode())
            wall = child.until("\u2021".encode())
            work = cpu(child.pid)
            print(f"a typed character stands after {wall:.3f} s, {work:.2f} s of CPU of the screen")
            child.rest(1.0)
            child.type(b"\x15\x11")
            child.end()


def write_transcript(directory: Path, characters: int) -> str:
    """A conversation of exchanges of some 2,000 characters, with its rounds; its id."""
    from eagle3chat.engine.events import Finished, Info, Round, Token, Usage
    from eagle3chat.engine.requests import Controls
    from eagle3chat.transcript import Transcript

    transcript = Transcript.create(directory)
    transcript.opened(
        Info("Model", "D", "llama", "torch", "cpu", "int4", "chatml", 8192, 8, 3, "", (), 1.0, 10), Controls(3)
    )
    words = ("The ", "**draft** ", "proposes ", "a ", "`chain`", " of", " tokens", ",", " and", " the", " target.\n\n")
    written = 0
    while written < characters:
        transcript.user("A question about what was said before?")
        for index in range(200):
            first, second = words[2 * index % len(words)], words[(2 * index + 1) % len(words)]
            drafted = (Token(7, first, 0.8, 0.9), Token(8, " the", 0.3, 0.1), Token(9, " it", 0.2, None))
            own = Token(5, second, None, 0.6)
            considered = (own, Token(6, " an", None, 0.1))
            text = first + second
            transcript.round(
                Round(index, 40 + 2 * index, 3, 0.8, drafted, 1, own, "correction", considered, text, 0.02)
            )
            written += len(text)
        transcript.reply(Finished("stop", "", "", Usage(40, 0, 400, 200, 200, 200, 200, (), (), (), 0.1, 4.0, 0.2)))
    transcript.close()
    return transcript.id


def main() -> None:
    """Measure one thing."""
    parser = argparse.ArgumentParser(description="What the screen costs.")
    parser.add_argument("what", choices=("frames", "idle", "start", "open", "child"))
    parser.add_argument("--rate", type=float, default=100.0, help="tokens a second of the made-up reply")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each look at an idle chat")
    parser.add_argument("--out", default="", help=argparse.SUPPRESS)
    args, rest = parser.parse_known_args()
    arguments = rest or ["--backend", "scripted"]
    match args.what:
        case "frames":
            frames(args.rate)
        case "child":
            child_frames(args.out, args.rate)
        case "idle":
            idle(arguments, args.seconds)
        case "start":
            start(arguments)
        case "open":
            start(arguments, CHARACTERS)


if __name__ == "__main__":
    main()
