"""The worker's log stays bounded while several workers write to it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from eagle3chat.engine.worker_log import LOG_BYTES, LOOK_SECONDS, WorkerLog

LINE = b"a line of a library's warnings\n"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log" / "worker.log"


def test_a_log_that_grows_while_two_workers_run_is_cut_under_both(path: Path) -> None:
    clock = Clock()
    log, other = WorkerLog(path, clock), WorkerLog(path)
    first, second = log.open(), other.open()
    try:
        for number in range(3):
            os.write(first, LINE * (LOG_BYTES // len(LINE) + 1) + b"the end %d\n" % number)
            log.tend()
            assert path.stat().st_size > LOG_BYTES, "not yet looked at"
            clock.now += LOOK_SECONDS
            log.tend()
            assert path.stat().st_size == 0
            old = path.with_name("worker.log.1")
            assert old.stat().st_size == LOG_BYTES
            assert old.read_bytes().endswith(b"the end %d\n" % number)
            os.write(second, b"second\n")
            os.write(first, b"first\n")
            assert path.read_bytes() == b"second\nfirst\n", "both go on in the same file, without a hole"
    finally:
        os.close(first)
        os.close(second)
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["worker.log", "worker.log.1"]
    assert {stat.S_IMODE(entry.stat().st_mode) for entry in path.parent.iterdir()} == {0o600}


def test_a_log_is_cut_where_its_end_cannot_be_kept(path: Path) -> None:
    path.with_name("worker.log.1").mkdir(parents=True)
    clock = Clock()
    log = WorkerLog(path, clock)
    fd = log.open()
    os.write(fd, b"x" * (LOG_BYTES + 1))
    os.close(fd)
    clock.now += LOOK_SECONDS
    log.tend()
    assert path.stat().st_size == 0


@pytest.mark.parametrize("kind", ["pipe", "directory", "loop"])
def test_what_is_no_file_is_not_waited_for(path: Path, kind: str) -> None:
    path.parent.mkdir()
    {"pipe": os.mkfifo, "directory": os.mkdir, "loop": lambda p: os.symlink(p, p)}[kind](path)
    log = WorkerLog(path)
    fd = log.open()
    try:
        assert os.fstat(fd).st_rdev == os.stat(os.devnull).st_rdev
    finally:
        os.close(fd)
