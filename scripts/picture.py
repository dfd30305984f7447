"""Writes the picture of the screen for the README from rounds that were recorded.

python scripts/picture.py                         from the scripted pair, the same on every machine
python scripts/picture.py CHAT.jsonl              from a transcript: its last reply and what was asked
options: --output docs/screen.svg  --size 104x34  --theme dark|light  --share 0.47 (of the reply)
         --keys f4,left,left (pressed at the end: the round inspector)
"""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path

from eagle3chat.engine.errors import Eagle3Error
from eagle3chat.engine.events import Event, Info, Prefill, Ready, Round
from eagle3chat.engine.pair import open_pair
from eagle3chat.engine.requests import Controls, Message, PairOptions, Say
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.session import Session
from eagle3chat.transcript import load
from eagle3chat.transcript_codec import Reply, Said
from eagle3chat.ui.app import ChatApp

ASKED = "How does speculative decoding work?"
SECONDS = 0.021  # of a scripted round, whose own time says nothing
NEVER = 3600.0  # seconds: what is drawn when depends on the rounds alone
LONGEST = 8  # chain of a bundle; transcripts do not keep it
BATCH = 3  # rounds between two drawings


@dataclass(frozen=True, slots=True)
class Recording:
    """A reply to show."""

    info: Info
    controls: Controls
    asked: str
    rounds: tuple[Round, ...]


class Replay:
    """A worker's handle that has a recording instead of a child."""

    def __init__(self, info: Info, on_event: Callable[[Event], None]) -> None:
        self._info = info
        self.emit = on_event

    def start(self) -> None:
        """Be open at once."""
        self.emit(Ready(self._info))

    def say(self, say: Say) -> None:
        """Who drives the picture emits the rounds."""

    def adjust(self, controls: Controls) -> None:
        """Nothing to change."""

    def cancel(self) -> None:
        """Nothing to stop."""

    def restart(self) -> None:
        """Nothing to restart."""

    def close(self, timeout: float = 3.0) -> None:
        """Nothing to close."""


def from_scripted() -> Recording:
    """Rounds of the scripted pair at a fixed seed."""
    controls = Controls(3, Sampling(temperature=0.8, seed=7))
    pair = open_pair(PairOptions(backend="scripted"), lambda stage, fraction: None)
    events = Session(pair).reply(Say((Message("user", ASKED),), controls))
    rounds = tuple(replace(e, seconds=SECONDS) for e in events if isinstance(e, Round))
    return Recording(replace(pair.info, load_seconds=0.0), controls, ASKED, rounds)


def from_transcript(path: Path) -> Recording:
    """The last reply of a transcript.

    Raises:
        TranscriptError: It cannot be read.
        Eagle3Error: It holds no reply.
    """
    turns = load(path).turns
    replies = [turn for turn in turns if isinstance(turn, Reply) and turn.rounds]
    if not replies:
        raise Eagle3Error(f"{path} holds no reply.", "Chat first.")
    reply = replies[-1]
    before = turns[: turns.index(reply)]
    asked = next(turn.text for turn in reversed(before) if isinstance(turn, Said) and turn.role == "user")
    known = {f.name: getattr(reply.pair, f.name) for f in fields(reply.pair) if f.name != "bundle"}
    longest = max(round_.chain for round_ in reply.rounds)
    info = Info(
        **known,
        capacity=8192,
        max_chain=max(LONGEST, longest),
        default_chain=longest,
        unavailable="",
        stops=(),
        load_seconds=0.0,
        memory_bytes=0,
    )
    return Recording(info, reply.controls, asked, reply.rounds)


async def draw(
    recording: Recording, size: tuple[int, int], theme: str, share: float, keys: tuple[str, ...] = ()
) -> str:
    """The screen, as SVG, when that share of the reply has come and the keys were pressed."""
    replays: list[Replay] = []

    def factory(options: PairOptions, on_event: Callable[[Event], None]) -> Replay:
        replays.append(Replay(recording.info, on_event))
        return replays[0]

    app = ChatApp(PairOptions(), recording.controls, theme=theme, flush_seconds=NEVER, worker_factory=factory)
    async with app.run_test(size=size) as pilot:
        await pilot.pause(0.2)
        await app.host.say(recording.asked)
        prompt = recording.rounds[0].position
        shown = recording.rounds[: max(1, round(len(recording.rounds) * share))]
        replays[0].emit(Prefill(prompt, prompt, 0))
        for at in range(0, len(shown), BATCH):
            for round_ in shown[at : at + BATCH]:
                replays[0].emit(round_)
            await app.host.wake()
            await pilot.pause()
        await app.stage.flush(all_parts=True)
        await pilot.press(*keys)
        await pilot.pause()
        svg = app.export_screenshot(title="eagle3chat")
    return re.sub(
        r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL
    )  # the picture stands alone: no fonts from elsewhere


def main() -> None:
    """Read the arguments and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("transcript", nargs="?", type=Path)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent.parent / "docs" / "screen.svg")
    parser.add_argument("--size", default="104x34")
    parser.add_argument("--theme", default="dark")
    parser.add_argument("--share", type=float, default=0.47)
    parser.add_argument("--keys", default="")
    args = parser.parse_args()
    recording = from_transcript(args.transcript) if args.transcript else from_scripted()
    width, _, height = args.size.partition("x")
    keys = tuple(key for key in args.keys.split(",") if key)
    svg = asyncio.run(draw(recording, (int(width), int(height)), args.theme, args.share, keys))
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
