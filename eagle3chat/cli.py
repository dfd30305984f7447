"""The `eagle3chat` command: dispatch, and what becomes of errors.

Exit codes: 0; 2 for anything the person can mend, told in one line on stderr; 70 for a mistake of ours, told in one
line with the path of a report; 130 after Ctrl+C, 143 and 129 where the chat was asked to end by SIGTERM and SIGHUP;
141 when the reader of stdout has gone. `doctor` has 1 for what will not work. Importing this module imports no tensor
library, no tokenizer and no screen: each command is imported when it runs.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

from eagle3chat.arguments import build_parser, check_text
from eagle3chat.engine.errors import Eagle3Error
from eagle3chat.ui.clean import clean_line

MENDABLE = 2
MISTAKE = 70  # EX_SOFTWARE of sysexits.h
NO_MEMORY = "There is not enough memory. A smaller --context, --dtype int4 or a smaller model takes less."
INTERRUPTED = 130  # 128 + SIGINT
BROKEN_PIPE = 141  # 128 + SIGPIPE
LONG = 200  # characters of a path that are shown
NAMES = (
    "ENOSPC",
    "EDQUOT",
    "EFBIG",
    "EROFS",
    "EIO",
    "EMFILE",
    "ENFILE",
    "EACCES",
    "EPERM",
    "ELOOP",
    "ENOTDIR",
    "ENAMETOOLONG",
)
REFUSALS = frozenset(getattr(errno, name) for name in NAMES)
"""What a system says of its own state: no mistake of ours."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; the exit code.

    Args:
        argv: Arguments without the program's name; None: those of this process.
    """
    _mend_streams()
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:  # a locale that cannot spell the reply must not end it
            reconfigure(errors="replace")
    try:
        args = build_parser().parse_args(argv)
        check_text(args)
        code = _dispatch(args)
        sys.stdout.flush()  # here, where it can be told that it fails
        return code
    except Eagle3Error as error:
        _tell(str(error))
        return MENDABLE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _silence(sys.stdout)
        return BROKEN_PIPE
    except MemoryError:
        _tell(NO_MEMORY)
        return MENDABLE
    except OSError as error:
        if error.errno not in REFUSALS:
            return _crashed(error, sys.argv[1:] if argv is None else argv)
        name = str(error.filename or "The output")
        shown = name if len(name) < LONG else f"{name[:LONG]}..."
        _tell(f"{shown} cannot be written or read: {error.strerror}.")
        _silence(sys.stdout)
        return MENDABLE
    except Exception as error:  # noqa: BLE001  # nobody is shown a traceback
        if _interrupted(error):
            return INTERRUPTED
        return _crashed(error, sys.argv[1:] if argv is None else argv)


def _interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl+C is behind an error: some libraries, when they are interrupted, raise one of theirs."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _crashed(error: Exception, argv: Sequence[str]) -> int:
    """Tell a mistake of ours in one line; the exit code."""
    from eagle3chat.engine.crash import write_report

    path = write_report(error, argv)
    where = f" A report that you can read before sharing it: {path}" if path else ""
    _tell(f"This is a mistake in eagle3chat ({type(error).__name__}).{where}")
    return MISTAKE


def _tell(text: str) -> None:
    """A line on stderr, if there still is one."""
    try:
        print(f"eagle3chat: {clean_line(text)}", file=sys.stderr, flush=True)
    except OSError:
        _silence(sys.stderr)


def _silence(stream: TextIO) -> None:
    """The interpreter flushes its streams once more at exit: let that go nowhere."""
    with suppress(OSError):  # it has no descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _mend_streams() -> None:
    """Whoever closed a stream gets an empty one: all else is written for streams that are there."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # for the rest of the process


def _dispatch(args: argparse.Namespace) -> int:
    if args.command == "run":
        from eagle3chat.run_command import run

        return run(args)
    if args.command == "bench":
        from eagle3chat.bench_command import bench

        return bench(args)
    if args.command == "export":
        from eagle3chat.export_command import export

        return export(args)
    if args.command == "info":
        from eagle3chat.info_command import info

        return info(args)
    if args.command == "train":
        from eagle3chat.train_command import train

        return train(args)
    if args.command == "eval":
        from eagle3chat.eval_command import evaluate

        return evaluate(args)
    if args.command == "transcripts":
        from eagle3chat.transcripts_command import transcripts

        return transcripts(args)
    if args.command == "replay":
        from eagle3chat.replay_command import replay

        return replay(args)
    if args.command == "doctor":
        from eagle3chat.doctor_command import doctor

        return doctor(args)
    if args.command == "config":
        from eagle3chat.config_command import config

        return config(args)
    from eagle3chat.chat_command import chat

    return chat(args)
