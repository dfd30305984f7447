"""What goes wrong, in words for the person at the screen.

    Eagle3Error            every error that a user can cause or mend; carries `message` and `fix`
      SettingError         a flag, a key or a settings file has a value outside its range
      PromptError          the prompt cannot be decoded: empty, or longer than the context
      TemplateError        a chat template is unknown, unreadable or does not render
      BundleError          a model directory is missing, damaged or inconsistent
      CheckpointError      a foreign checkpoint cannot be read or cannot be converted exactly
      BackendError         the tensor backend cannot be opened on this machine
      WorkerError          the decode worker is gone
      TranscriptError      a transcript cannot be read or written
      ServerError          a server cannot be reached, refuses a request, or breaks off
      TrainError           a draft cannot be trained as asked: data, another target's draft, a run that does not fit

This module knows no one who raises them. A mistake of our own is an `assert`, never one of these.
"""

from __future__ import annotations


class Eagle3Error(Exception):
    """An error whose text is shown to the user as it is.

    Args:
        message: One sentence that says what is wrong, naming the value or the file.
        fix: One sentence that says what to do; empty when there is nothing to do.
    """

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message, fix)  # both, so that the error survives pickling
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message} {self.fix}".strip()


class SettingError(Eagle3Error):
    """A flag, a key or a settings file has a value outside its range."""


class PromptError(Eagle3Error):
    """The prompt cannot be decoded: empty, or longer than the context."""


class TemplateError(Eagle3Error):
    """A chat template is unknown, unreadable or does not render."""


class BundleError(Eagle3Error):
    """A model directory is missing, damaged or inconsistent.

    Args:
        path: The file or directory that is at fault.
        what: What is wrong with it, as a clause.
        fix: One sentence that says what to do.
    """

    def __init__(self, path: str, what: str, fix: str = "") -> None:
        super().__init__(f"{path}: {what}.", fix)
        self.args = (path, what, fix)
        self.path = path
        self.what = what


class CheckpointError(Eagle3Error):
    """A foreign checkpoint cannot be read or cannot be converted exactly."""


class BackendError(Eagle3Error):
    """The tensor backend cannot be opened on this machine."""


class WorkerError(Eagle3Error):
    """The decode worker is gone."""


class ServerError(Eagle3Error):
    """A server cannot be reached, refuses a request, or breaks off."""


class TranscriptError(Eagle3Error):
    """A transcript cannot be read or written."""


class TrainError(Eagle3Error):
    """A draft cannot be trained as asked: its data, the draft to start from, or a run's directory."""
