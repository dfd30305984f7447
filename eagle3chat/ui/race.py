"""A race of a pair with itself: one prompt and one seed, decoded plainly and then with speculation.

Both laps run on the worker, one after the other, and the text of the second is compared with that of the first.
Times are the worker's, without the reading of the prompt. Knows no widget.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from eagle3chat.engine.events import Event, Failed, Finished, Prefill, Round
from eagle3chat.engine.requests import Controls, Message, Say
from eagle3chat.ui.figures import plural

TOKENS = 256  # of a lap, unless a shorter limit is set


@dataclass(slots=True)
class Lap:
    """One way of decoding the prompt."""

    name: str
    controls: Controls
    ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    seconds: float = 0.0  # of the rounds so far; at the end: of the whole decoding
    rounds: int = 0
    reading: str = ""  # of the prompt, how far
    finished: Finished | None = None

    @property
    def tokens_per_second(self) -> float:
        """Tokens / seconds; 0 before the first round."""
        return len(self.ids) / self.seconds if self.seconds > 0 else 0.0

    @property
    def text(self) -> str:
        """What it said."""
        return "".join(self.texts)

    def take(self, event: Event) -> None:
        """An event of the worker."""
        match event:
            case Prefill(done=done, total=total):
                self.reading = f"{done} of {total}"
            case Round():
                self.ids += [token.id for token in event.tokens]
                self.texts.append(event.text)
                self.seconds += event.seconds
                self.rounds += 1
            case Finished():
                self.texts.append(event.text)
                self.seconds = event.usage.decode_seconds or self.seconds
                self.finished = event


class Race:
    """Two laps.

    Args:
        messages: The prompt.
        controls: Of the second lap; with a chain.
        limit: Tokens of a lap.
    """

    def __init__(self, messages: tuple[Message, ...], controls: Controls, limit: int) -> None:
        self.messages = messages
        self.limit = limit
        self.laps = (Lap("plain", replace(controls, chain=0, auto=False)), Lap("speculative", controls))
        self.failure = ""
        self.stopped = False

    @property
    def lap(self) -> Lap | None:
        """The lap that runs."""
        if self.stopped or self.failure:
            return None
        return next((lap for lap in self.laps if lap.finished is None), None)

    @property
    def over(self) -> bool:
        """Whether nothing runs any more."""
        return self.lap is None

    def request(self) -> Say:
        """The request of the lap that comes next."""
        assert self.lap is not None
        return Say(self.messages, self.lap.controls, self.limit)

    def take(self, event: Event) -> bool:
        """An event of the worker; whether the next lap is to be asked for."""
        lap = self.lap
        if lap is None:
            return False
        if isinstance(event, Failed):
            self.failure = event.message
            return False
        lap.take(event)
        if isinstance(event, Finished) and event.reason == "cancelled":
            self.stopped = True
        return isinstance(event, Finished) and not self.over

    @property
    def speedup(self) -> float:
        """Seconds of the plain lap / seconds of the other."""
        plain, fast = self.laps
        return plain.seconds / fast.seconds if fast.seconds > 0 else 0.0

    @property
    def difference(self) -> int | None:
        """The first token in which the laps differ, from 0; None: they are the same."""
        plain, fast = self.laps
        if plain.ids == fast.ids and plain.text == fast.text:
            return None
        pairs = zip(plain.ids, fast.ids, strict=False)
        return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(plain.ids), len(fast.ids)))

    def verdict(self) -> str:
        """The end in one sentence; empty while it runs."""
        if self.failure:
            return f"race: {self.failure}"
        if self.stopped:
            return "race: stopped"
        if not self.over:
            return ""
        plain, fast = self.laps
        chain = "auto" if fast.controls.auto else str(fast.controls.chain)
        same = "the text is identical"
        if (at := self.difference) is not None:
            same = f"the text DIFFERS from token {at + 1} on"
        return (
            f"race over {plural(len(plain.ids), 'token')}: plain {plain.tokens_per_second:.0f} tok/s, "
            f"{plain.seconds:.2f} s; speculative (chain {chain}) {fast.tokens_per_second:.0f} tok/s, "
            f"{fast.seconds:.2f} s: {self.speedup:.2f}x; {same}"
        )
