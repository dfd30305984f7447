"""The transcript as the chat writes it: every call works or is the last one that fails.

A disk that is full costs the record, never the chat: the first failure is reported once. Knows no widget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from eagle3chat.engine.errors import TranscriptError
from eagle3chat.engine.events import Finished, Info, Round
from eagle3chat.engine.requests import Controls
from eagle3chat.transcript import Transcript
from eagle3chat.transcript_codec import Setup


class Record:
    """Writes to a transcript if there is one.

    Args:
        transcript: None: nothing is kept.
        bundle: The directory that the pair is opened from.
        report: Called once with the words for the person when writing fails.
    """

    def __init__(self, transcript: Transcript | None, bundle: str, report: Callable[[str], None]) -> None:
        self.transcript = transcript
        self.bundle = bundle
        self._report = report
        self._info: Info | None = None  # to be written before the next message

    def opened(self, info: Info, controls: Controls, system: str) -> None:
        """The pair is open."""
        self._info = None
        self._write(lambda t: t.opened(info, controls, self.bundle))
        self._write(lambda t: t.system(system))

    def settings(self, controls: Controls) -> None:
        """Chain or sampling changed."""
        self._write(lambda t: t.settings(controls))

    def system(self, text: str) -> None:
        """The system message changed."""
        self._write(lambda t: t.system(text))

    def user(self, text: str) -> None:
        """The user's message, before anything is generated."""
        info, self._info = self._info, None
        if info is not None:
            self._write(lambda t: t.pair(info, self.bundle))
        self._write(lambda t: t.user(text))

    def rounds(self, rounds: list[Round]) -> None:
        """Rounds of the reply."""
        for round_ in rounds:
            self._write(lambda t, r=round_: t.round(r))  # type: ignore[misc]

    def reply(self, finished: Finished) -> None:
        """The reply is complete."""
        self._write(lambda t: t.reply(finished))

    def back(self, keep: int) -> None:
        """The first exchanges stay."""
        self._write(lambda t: t.back(keep))

    def undo(self) -> None:
        """What `back` took away last is there again."""
        self._write(lambda t: t.undo())

    def choose(self, place: int) -> None:
        """Another reply to the last message counts."""
        self._write(lambda t: t.choose(place))

    def go_on(self, place: int, rounds: Sequence[Round]) -> None:
        """A reply to the last message goes on."""
        self._write(lambda t: t.go_on(place, rounds))

    def note(self, kind: str, text: str) -> None:
        """Something happened beside the messages."""
        self._write(lambda t: t.note(kind, text))

    def renew(self) -> None:
        """Begin a transcript of its own for a new conversation."""
        if self.transcript is not None:
            old = self.transcript
            self._write(lambda t: t.close())
            self.transcript = old.successor()

    def switch(self, transcript: Transcript | None, info: Info | None) -> None:
        """Go on with another transcript. It is told of the pair, if one is open, when something is said."""
        self._write(lambda t: t.close())
        self.transcript, self._info = transcript, info

    def setup(self, setup: Setup) -> None:
        """Limit or template changed."""
        self._write(lambda t: t.setup(setup))

    def close(self) -> None:
        """Write what waits."""
        self._write(lambda t: t.close())

    def _write(self, work: Callable[[Transcript], None]) -> None:
        if self.transcript is None:
            return
        try:
            work(self.transcript)
        except TranscriptError as error:
            self._report(str(error))
