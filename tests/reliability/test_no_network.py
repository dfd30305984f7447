"""Nothing here talks to anyone: run, info, doctor and the worker's opening work where sockets are forbidden, and no
library prints or warns beside the program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import tiny_bundle

WITHOUT = """
import socket, sys
def forbidden(*args, **kwargs):
    raise AssertionError(f"a socket is opened: {args}")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = forbidden
class Forbidden(socket.socket):
    def __init__(self, family=-1, *args, **kwargs):
        if family != socket.AF_UNIX:
            forbidden(family)
        super().__init__(family, *args, **kwargs)
socket.socket = Forbidden
from eagle3chat.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("command", ["run", "info", "transcripts", "config"])
def test_no_socket_and_no_stray_word(command: str, tmp_path: Path) -> None:
    bundle = tiny_bundle(tmp_path)
    argv = {
        "run": ["run", "--prompt", "Hi", "--max-new-tokens", "4", "--quiet", "--model", str(bundle)],
        "info": ["info", str(bundle)],
    }.get(command, [command])
    env = os.environ | {f"XDG_{name}_HOME": str(tmp_path) for name in ("CONFIG", "DATA", "STATE", "CACHE")}
    done = subprocess.run([sys.executable, "-c", WITHOUT, *argv], capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "no warning, no progress bar"


def test_the_trap_works(tmp_path: Path) -> None:
    code = WITHOUT.replace("from eagle3chat.cli import main\nsys.exit(main(sys.argv[1:]))", "socket.socket(2)")
    assert "a socket is opened" in subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr
