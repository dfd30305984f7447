"""`eagle3chat transcripts`: list saved conversations, print one, or say where it is.

What it prints goes to a terminal or a pipe; cleaned either way, since these are words of models. Knows
transcripts and words, no engine.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from eagle3chat.transcript import Summary, find, list_transcripts, load
from eagle3chat.transcript_codec import Change, Conversation, Note, Reply, Said
from eagle3chat.ui.clean import clean, clean_line

MODEL_WIDTH = 28


def transcripts(args: argparse.Namespace) -> int:
    """Carry out an action on transcripts; the exit code.

    Raises:
        TranscriptError: There is no such transcript, or it cannot be read.
    """
    if args.action == "list":
        lines = list(listing(list_transcripts()))
    elif args.action == "path":
        lines = [str(find(args.id))]
    else:
        lines = list(shown(load(find(args.id))))
    for line in lines:
        print(line)
    return 0


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


_CHANGES = {"back": "taken back to message {0}", "choose": "reply {1} to the message before counts"}


def _ending(reply: Reply) -> str:
    """How a reply ended, where that is worth a word."""
    if reply.finished is None:
        return " (broken off)"
    usage = reply.finished.usage
    counts = f"{usage.generated_tokens} tokens, {usage.rounds} rounds, tau {usage.tau:.2f}"
    return f" ({counts}, {reply.finished.reason})"
