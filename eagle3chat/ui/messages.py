"""What widgets tell the app."""

from __future__ import annotations

from dataclasses import dataclass

from textual.message import Message


@dataclass
class Submitted(Message):
    """Enter was pressed in the prompt."""

    text: str  # with what its placeholders stand for
    draft: str = ""  # as it stood in the prompt


@dataclass
class BackgroundTold(Message):
    """The terminal told of its background."""

    light: bool


@dataclass
class CopyWanted(Message):
    """A text was clicked, to be copied."""

    name: str  # for a person
    text: str


@dataclass
class Woken(Message):
    """Events of the worker wait to be fetched."""

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, Woken)  # one fetch takes all that wait
