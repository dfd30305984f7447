"""Copying: the machine's own clipboard where there is a tool for it, else a request to the terminal.

What a terminal does with the request is not known, so it is never called a copy. Knows no widget.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping

SECONDS = 2.0  # for a tool


def tools(environ: Mapping[str, str], platform: str = sys.platform) -> list[tuple[str, list[str]]]:
    """Names and commands that take the text on their input, the most direct first.

    Over SSH the tools are of the other machine: only tmux, which asks the terminal at the near end, is of use.
    """
    found: list[tuple[str, list[str]]] = []
    if not (environ.get("SSH_CONNECTION") or environ.get("SSH_TTY")):
        if platform == "darwin":
            found.append(("the clipboard", ["pbcopy"]))
        if environ.get("WAYLAND_DISPLAY"):
            found.append(("the clipboard", ["wl-copy"]))
        if environ.get("DISPLAY"):
            found.append(("the clipboard", ["xclip", "-selection", "clipboard"]))
            found.append(("the clipboard", ["xsel", "--clipboard", "--input"]))
        if environ.get("WSL_DISTRO_NAME"):
            found.append(("the clipboard", ["clip.exe"]))
    if environ.get("TMUX"):
        found.append(("tmux and its terminal", ["tmux", "load-buffer", "-w", "-"]))
    return [(name, command) for name, command in found if shutil.which(command[0])]


def copy(text: str, environ: Mapping[str, str], ask_terminal: Callable[[str], None]) -> str:
    """Copy text.

    Args:
        ask_terminal: Sends the terminal a request to copy.

    Returns:
        Where it went, in words that claim no more than is known.
    """
    for name, command in tools(environ):
        try:
            done = subprocess.run(
                command,
                input=text.encode("utf-8", "replace"),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return f"copied to {name}"
    ask_terminal(text)
    return "sent to the terminal's clipboard"
