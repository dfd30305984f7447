"""`eagle3chat run`: one prompt in, the reply on stdout as it is written, the report on stderr.

Knows streams and sessions; the report's words are in `report`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TextIO

from eagle3chat.engine.errors import PromptError, SettingError
from eagle3chat.engine.events import Finished, Prefill, Round
from eagle3chat.engine.remote_options import ServerOptions
from eagle3chat.engine.requests import Say
from eagle3chat.engine.small_files import read_named
from eagle3chat.foreground import decode, interrupts, now_ms
from eagle3chat.opening import Progress, open_wished
from eagle3chat.report import Reply, closing_lines, opening_line, stats
from eagle3chat.serving import ServerSession, server_wished, without_bundle
from eagle3chat.ui.clean import clean
from eagle3chat.wishes import Wishes, flag, read_wishes

MAX_NEW_TOKENS = 128
MOST_CHARACTERS = 1 << 24  # of a prompt; no context is as long
INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it


def run(args: argparse.Namespace) -> int:
    """Decode one prompt; the exit code.

    Raises:
        Eagle3Error: Anything that the person can mend.
        BrokenPipeError: Whoever read stdout has gone.
    """
    from eagle3chat.engine.session import Session

    wishes = read_wishes(args, max_new_tokens=MAX_NEW_TOKENS)
    server = server_wished(args, wishes)
    prompt = read_prompt(args, sys.stdin)
    quiet = bool(flag(args, "quiet"))
    if server is not None:
        return _run_on(server, args, without_bundle(args, wishes), prompt, quiet)
    with _open_trace(flag(args, "trace")) as trace:
        load_start = now_ms()
        asked = Say(
            wishes.messages(prompt), wishes.controls(0), wishes.max_new_tokens, raw=bool(flag(args, "raw_prompt"))
        )
        pair = open_wished(wishes, sys.stderr, quiet=quiet, first=asked)
        try:
            say = dataclasses.replace(asked, controls=wishes.controls(pair.info.default_chain))
            for line in (*pair.info.checks, *pair.info.warnings):
                print(clean(line), file=sys.stderr)
            session = Session(pair)
            printer = Printer(say, pair.info.capacity, text=not flag(args, "json"), report=not quiet, trace=trace)
            with interrupts(session.cancel):
                reply = decode(pair.info, session, say, printer, (load_start, now_ms()))
        finally:
            pair.close()
    return _ended(args, reply, printer)


def _run_on(server: ServerOptions, args: argparse.Namespace, wishes: Wishes, prompt: str, quiet: bool) -> int:
    """Have a server decode the prompt; the exit code."""
    with _open_trace(flag(args, "trace")) as trace:
        load_start = now_ms()
        progress = Progress(sys.stderr, quiet=quiet or not sys.stderr.isatty())
        try:
            session = ServerSession(server, lambda stage: progress(stage, None))
        finally:
            progress.done()
        try:
            raw = bool(flag(args, "raw_prompt"))
            say = Say(wishes.messages(prompt), wishes.controls(0), wishes.max_new_tokens, raw=raw)
            for line in (*session.info.checks, *session.info.warnings):
                print(clean(line), file=sys.stderr)
            printer = Printer(say, None, text=not flag(args, "json"), report=not quiet, trace=trace)
            with interrupts(session.cancel):
                reply = decode(session.info, session, say, printer, (load_start, now_ms()))
        finally:
            session.close()
    return _ended(args, reply, printer)


def _ended(args: argparse.Namespace, reply: Reply, printer: Printer) -> int:
    if flag(args, "json"):
        print(document(reply), flush=True)
    else:
        printer.close(reply)
    return INTERRUPTED if reply.reason == "cancelled" else 0


def document(reply: Reply) -> str:
    """The one JSON document of `--json`; pure ASCII, so that no terminal can be driven by it."""
    return json.dumps(
        {
            "text": reply.text,
            "token_ids": list(reply.token_ids),
            "finish_reason": reply.reason,
            "stop": reply.stop,
            "model": reply.info.model,
            "stats": stats(reply),
        }
    )


class Printer:
    """Writes a reply while it streams: text to stdout, report to stderr, rounds to a trace.

    Args:
        say: What was asked.
        capacity: Of the pair, positions; None: a server has it, and counts the prompt itself.
        text: Write the text.
        report: Write the report.
        trace: Takes a line a round.
    """

    def __init__(self, say: Say, capacity: int | None, *, text: bool, report: bool, trace: TextIO | None) -> None:
        self._say = say
        self._capacity = capacity
        self._text = text
        self._report = report and text
        self._trace = trace
        self._terminal = sys.stdout.isatty()
        self._opened = False
        self._last = ""

    def __call__(self, event: Prefill | Round | Finished) -> None:
        """Take the next event."""
        if isinstance(event, Prefill):
            self._open(event.total + 1)  # the prompt's last token is not prefilled: it is the first anchor
            return
        if isinstance(event, Round) and self._trace is not None:
            self._trace.write(json.dumps(dataclasses.asdict(event)) + "\n")
        self._write(event.text)
        if isinstance(event, Finished):
            for line in event.notes:
                print(clean(line), file=sys.stderr, flush=True)

    def close(self, reply: Reply) -> None:
        """End the text with a newline and write the report."""
        if not self._last.endswith("\n"):
            self._write("\n")
        if self._report:
            for line in closing_lines(reply):
                print(clean(line), file=sys.stderr)
            print(json.dumps(stats(reply)), file=sys.stderr, flush=True)

    def _open(self, prompt_tokens: int) -> None:
        if self._report and not self._opened and self._capacity is not None:
            room = self._capacity + 1 - prompt_tokens
            budget = room if self._say.max_new_tokens is None else min(room, self._say.max_new_tokens)
            line = opening_line(prompt_tokens, self._say.controls, budget)
            print(line, file=sys.stderr, flush=True)
        self._opened = True

    def _write(self, text: str) -> None:
        if self._text and text:
            sys.stdout.write(clean(text) if self._terminal else text)
            sys.stdout.flush()
            self._last = text


def read_prompt(args: argparse.Namespace, stdin: TextIO) -> str:
    """The prompt of the flag, the file or standard input; one newline at the end of a file is not part of it.

    Raises:
        PromptError: There is none, it is empty, or it is not UTF-8.
    """
    given, file = flag(args, "prompt"), flag(args, "prompt_file")
    try:
        if given is not None:
            prompt = str(given)
        elif file is not None:
            prompt = read_named(Path(file), MOST_CHARACTERS).removesuffix("\n")
        elif stdin.isatty():
            raise PromptError("There is no prompt.", "Use --prompt TEXT or --prompt-file FILE, or pipe it in.")
        else:
            prompt = stdin.read(MOST_CHARACTERS + 1).removesuffix("\n")
        prompt.encode()
    except OSError as error:
        name, fix = ("Standard input", "") if file is None else (f"The prompt file {file}", "Check --prompt-file.")
        raise PromptError(f"{name} cannot be read: {error.strerror or error}.", fix) from error
    except UnicodeError as error:
        raise PromptError("The prompt is not UTF-8 text.", "Save it as UTF-8.") from error
    if not prompt:
        raise PromptError("The prompt is empty.", "Give it some text.")
    if len(prompt) > MOST_CHARACTERS:
        raise PromptError(f"The prompt has more than {MOST_CHARACTERS:,} characters.", "Shorten it.")
    return prompt


def _open_trace(path: str | None) -> AbstractContextManager[TextIO | None]:
    if path is None:
        return nullcontext()
    try:
        return open(path, "w", encoding="utf-8", buffering=1)
    except OSError as error:
        raise SettingError(f"The trace {path} cannot be written: {error.strerror}.", "Check --trace.") from error
