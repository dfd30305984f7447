"""The person's own editor for a draft. Knows no widget."""

from __future__ import annotations

import asyncio
import os
import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path

from eagle3chat.engine.errors import SettingError

FALLBACK = "vi"


def command_of(environ: Mapping[str, str]) -> list[str]:
    """The editor's command: $VISUAL, $EDITOR, or vi.

    Raises:
        SettingError: The variable cannot be read as a command.
    """
    text = environ.get("VISUAL") or environ.get("EDITOR") or FALLBACK
    try:
        command = shlex.split(text)
    except ValueError as error:
        raise SettingError(f"The editor {text!r} is no command: {error}.", "Set EDITOR to one.") from None
    return command or [FALLBACK]


async def edited(draft: str, environ: Mapping[str, str]) -> str:
    """The draft after the editor was left; the terminal must be the editor's meanwhile.

    Raises:
        SettingError: The editor cannot be started, or failed; the draft is as it was.
    """
    command = command_of(environ)
    fd, name = tempfile.mkstemp(prefix="eagle3chat-", suffix=".md")  # readable by its owner alone
    path = Path(name)
    try:
        with os.fdopen(fd, "w", encoding="utf-8", errors="replace", newline="\n") as file:
            file.write(draft)
        try:
            child = await asyncio.create_subprocess_exec(*command, name)
        except OSError as error:
            fix = "Set EDITOR to an editor that is installed."
            raise SettingError(f"The editor {command[0]} cannot be started: {error.strerror}.", fix) from None
        if code := await child.wait():
            raise SettingError(f"The editor {command[0]} ended with exit code {code}.", "The draft is as it was.")
        return path.read_text(encoding="utf-8", errors="replace").rstrip("\n")
    finally:
        path.unlink(missing_ok=True)
