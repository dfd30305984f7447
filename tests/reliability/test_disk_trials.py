"""The whole program on a disk that is full, a home that cannot be written, and beside another one of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from test_terminal_trials import Start, kept, start

__all__ = ["start"]
MOUNT = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs none /mnt"]
CAN_MOUNT = sys.platform == "linux" and subprocess.run(MOUNT, capture_output=True).returncode == 0
pytestmark = pytest.mark.skipif(not CAN_MOUNT, reason="needs a mount name space of its own")


def files(home: Path) -> list[str]:
    return sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.is_file())


def test_a_full_disk_is_told_once_and_the_chat_goes_on(start: Start, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    terminal = start(mounts=f"mount -t tmpfs -o size=8k,mode=700 none {tmp_path}/data")
    terminal.reply()
    terminal.until("can no longer be written: no space left")
    terminal.until("tested drafts accepted")
    terminal.send(b"Go on\r")
    terminal.until("Esc stop")
    terminal.send(b"\x11")
    assert terminal.end() == 0
    assert terminal.restored()
    assert b"Traceback" not in terminal.wrote
    assert terminal.wrote.count(b"no space left") <= 4, "it is told once (and may be painted again)"


def test_a_home_that_cannot_be_written(start: Start, tmp_path: Path) -> None:
    terminal = start(mounts=f"mount --bind {tmp_path} {tmp_path} && mount -o remount,ro,bind {tmp_path}")
    terminal.until("chain")
    terminal.send(b"Tell me\r")
    terminal.until("can no longer be written: read-only file system")
    terminal.until("tested drafts accepted")
    terminal.send(b"\x11")
    assert terminal.end() == 0
    assert terminal.restored()
    assert files(tmp_path) == []


def test_a_second_one_on_one_transcript_is_told_how_to_copy_it(start: Start, tmp_path: Path) -> None:
    first = start()
    first.reply()
    [path] = (tmp_path / "data").rglob("*.jsonl")
    second = start("--resume", path.stem)
    assert second.end() == 2
    assert (
        f"is open in another eagle3chat. Close that one first, or copy it: eagle3chat transcripts fork {path.stem}"
        in (" ".join(second.wrote.decode().split()))
    )
    first.send(b"\x11")
    assert first.end() == 0
    assert kept(tmp_path)[0] == "Tell me"


def test_private_keeps_nothing_of_what_was_said(start: Start, tmp_path: Path) -> None:
    terminal = start("--private")
    terminal.reply()
    terminal.until("tested drafts accepted")
    terminal.send(b"\x11")
    assert terminal.end() == 0
    assert files(tmp_path) == ["state/eagle3chat/log/worker.log"]
    assert "Tell me" not in (tmp_path / files(tmp_path)[0]).read_text()


def test_everything_that_is_kept_is_its_owners_alone(start: Start, tmp_path: Path) -> None:
    terminal = start(mounts="umask 0")
    terminal.reply()
    terminal.send(b"\x11")
    assert terminal.end() == 0
    for path in tmp_path.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    assert len(files(tmp_path)) >= 3
