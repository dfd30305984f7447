"""`eagle3chat transcripts`: list, search, print, name, delete, copy and export saved conversations.

What it prints goes to a terminal or a pipe; cleaned either way, since these are words of models. Knows
transcripts and words, no engine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path

from eagle3chat.engine.errors import TranscriptError
from eagle3chat.transcript import Summary, find, load
from eagle3chat.transcript_codec import Change, Conversation, Note, Reply, Said
from eagle3chat.transcript_index import END, MARK, TranscriptIndex
from eagle3chat.transcript_store import delete, fork, rename, undelete
from eagle3chat.ui.clean import clean, clean_line
from eagle3chat.ui.figures import told_parts

MODEL_WIDTH = 28


def transcripts(args: argparse.Namespace) -> int:
    """Carry out an action on transcripts; the exit code.

    Raises:
        TranscriptError: There is no such transcript, or it cannot be read.
    """
    for line in _done(args):
        print(line)
    return 0


def _done(args: argparse.Namespace) -> Iterable[str]:
    """Carry out the action; the lines to print."""
    match args.action:
        case "list" | "search":
            return _found(" ".join(args.words) if args.action == "search" else "")
        case "path":
            return [str(find(args.id))]
        case "rename":
            rename(find(args.id), " ".join(args.title))
            return []
        case "delete":
            path = delete(find(args.id))
            return [f"{path.stem} is in {path.parent}; it comes back with: eagle3chat transcripts undelete"]
        case "undelete":
            return [undelete(args.id).stem]
        case "fork":
            return [fork(find(args.id), args.keep).stem]
        case "export":
            return _exported(args)
        case _:
            return shown(load(find(args.id)))


def _found(words: str) -> Iterator[str]:
    with TranscriptIndex() as index:
        index.refresh()
        hits = index.search(words)
    if words and not hits:
        yield clean_line(f"No saved conversation holds {words}.")
        return
    excerpts = [hit.excerpt.replace(MARK, "[").replace(END, "]") for hit in hits]
    for line, excerpt in zip_longest(listing([hit.summary for hit in hits]), excerpts):
        yield line
        if excerpt:
            yield f"    {clean_line(excerpt)}"


def _exported(args: argparse.Namespace) -> Iterator[str]:
    """Write a conversation in another form; to a file, or as it is to standard output."""
    from eagle3chat.transcript_html import page
    from eagle3chat.transcript_text import document, markdown

    conversation = load(find(args.id))
    named = Path(args.output).suffix.lstrip(".") if args.output else ""
    form = args.format or {"htm": "html", "html": "html", "json": "json"}.get(named, "md")
    text = {"html": page, "json": document, "md": markdown}[form](conversation)
    if args.output is None:
        yield clean(text.rstrip("\n")) if sys.stdout.isatty() else text.rstrip("\n")
        return
    try:
        Path(args.output).write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise TranscriptError(f"{args.output} cannot be written: {(error.strerror or str(error)).lower()}.") from error


def listing(summaries: list[Summary]) -> Iterator[str]:
    """A line a conversation, the one written last first."""
    if not summaries:
        yield "There are no saved conversations yet."
    width = max((len(summary.id) for summary in summaries), default=0)
    for summary in summaries:
        when = summary.modified[:16].replace("T", " ")
        turns = "1 turn " if summary.turns == 1 else f"{summary.turns} turns"
        model = clean_line(summary.model)[:MODEL_WIDTH]
        yield f"{summary.id:{width}}  {when}  {model:{MODEL_WIDTH}}  {turns:>8}  {clean_line(summary.title)}".rstrip()


def shown(conversation: Conversation) -> Iterator[str]:
    """A conversation as plain text, each turn under the name of who said it."""
    header = conversation.header
    yield clean_line(f"{header.id}  {header.created}  {header.pair.model}")
    for turn in conversation.turns:
        yield ""
        if isinstance(turn, Said):
            yield f"# {'you' if turn.role == 'user' else turn.role}"
            yield clean(turn.text)
        elif isinstance(turn, Note):
            yield clean_line(f"# note: {turn.text}")
        elif isinstance(turn, Change):
            yield f"# {_CHANGES[turn.kind].format(turn.value, turn.value + 1)}"
        else:
            yield "# model" + clean_line(_ending(turn))
            yield clean(turn.text)
    if conversation.skipped:
        yield ""
        yield f"# {conversation.skipped} damaged lines of the file were left out"


_CHANGES = {
    "back": "taken back to message {0}",
    "choose": "reply {1} to the message before counts",
    "undo": "that was undone",
}


def _ending(reply: Reply) -> str:
    """How a reply ended, where that is worth a word."""
    if reply.finished is None:
        return " (broken off)"
    usage = reply.finished.usage
    counts = f"{usage.generated_tokens} tokens, {usage.rounds} rounds, tau {usage.tau:.2f}"
    if usage.told is not None:
        counts = ", ".join(told_parts(usage.told))
    return f" ({counts}, {reply.finished.reason})"
