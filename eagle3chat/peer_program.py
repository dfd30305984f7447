"""llama.cpp's programs on this machine: where they are, which version, and requantising by one of them.

Knows paths and processes; starts no server.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from eagle3chat.engine.errors import SettingError

SERVER, QUANTISER = "llama-server", "llama-quantize"
PLACES = ("", "bin", "build/bin")
DRAFT_KIND = "draft-eagle3"
SECONDS = 30.0  # for a question to a program
QUANTISE_SECONDS = 3600.0
FIX = "Use --peer llama.cpp=PATH with its build directory or its llama-server."
_VERSION = re.compile(r"version: *(\S.*)")


@dataclass(frozen=True, slots=True)
class Program:
    """An llama-server that answered."""

    server: Path
    version: str
    drafts: bool  # it knows EAGLE-3 drafts


def find_program(path: Path) -> Program:
    """The server at a path, or in a directory.

    Raises:
        SettingError: There is none, or it is something else.
    """
    server = _server_in(path) if path.is_dir() else path
    if server is None or not server.is_file():
        raise SettingError(f"There is no {SERVER} at {path}.", FIX)
    if not os.access(server, os.X_OK):
        raise SettingError(f"{server} cannot be run.", FIX)
    version = _VERSION.search(_said(server, "--version"))
    if version is None:
        raise SettingError(f"{server} does not say that it is llama.cpp's server.", FIX)
    return Program(server, version[1].strip(), DRAFT_KIND in _said(server, "--help"))


def quantise(program: Program, source: Path, file: Path, kind: str) -> Path:
    """Write a GGUF anew in another type, by the program beside the server; the file.

    Raises:
        SettingError: The program is not there, or fails.
    """
    tool = program.server.with_name(QUANTISER)
    fix = "Name a target of the type that you want with --peer-target FILE.gguf."
    if not tool.is_file():
        raise SettingError(f"There is no {QUANTISER} beside {program.server}.", fix)
    command = [str(tool), "--allow-requantize", "--pure", str(source), str(file), kind]
    try:
        done = subprocess.run(command, capture_output=True, timeout=QUANTISE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SettingError(f"{tool} cannot be run ({error}).", fix) from error
    if done.returncode or not file.is_file():
        raise SettingError(f"{QUANTISER} failed: {last_line(done.stderr or done.stdout)}.", fix)
    return file


def last_line(output: bytes) -> str:
    """What a program said last."""
    lines = [line.strip() for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1].rstrip(".")[-200:] if lines else "it said nothing"


def _server_in(directory: Path) -> Path | None:
    found = (directory / place / SERVER for place in PLACES)
    return next((file for file in found if file.is_file()), None)


def _said(server: Path, flag: str) -> str:
    try:
        done = subprocess.run([str(server), flag], capture_output=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = "it does not answer" if isinstance(error, subprocess.TimeoutExpired) else error.strerror
        raise SettingError(f"{server} cannot be run: {reason}.", FIX) from error
    return (done.stdout + done.stderr).decode("utf-8", "replace")
