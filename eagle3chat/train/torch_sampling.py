"""Conversations written by the target itself: it continues the chat template's user turn, then answers.

Line i has its own seed, so a file that was cut off goes on as if it had not been. Decoding is that of the engine, one
reply at a time: on a CPU that is as fast as a batch (190 tokens a second against 200 for a 135M target of 4 bits).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from eagle3chat.engine.bundle import open_bundle
from eagle3chat.engine.errors import TrainError
from eagle3chat.engine.pair import Pair, open_pair
from eagle3chat.engine.requests import Controls, Message, PairOptions, Piece
from eagle3chat.engine.sampling import Sampling
from eagle3chat.engine.speculate import speculate
from eagle3chat.engine.text import ReplyText
from eagle3chat.train.conversations import Line, read_lines

TOP_P = 0.95
PROMPT_TOKENS = 96
ATTEMPTS = 20  # for each prompt that is wanted: a small target repeats itself
PLACE = "\x00"  # stands for a user's text while the template is rendered


def open_writer(bundle: Path, longest: int) -> Pair:
    """The target of a bundle, to decode conversations of up to `longest` tokens with."""
    most = open_bundle(bundle).manifest.max_seq_len
    return open_pair(PairOptions(bundle=str(bundle), context=min(longest, most)))


def user_prefix(pair: Pair) -> list[int]:
    """The ids before the text of a first user turn: what makes a target write one."""
    before: list[Piece] = []
    for piece in pair.template.render((Message("user", PLACE),)):
        if piece.kind == "content":
            break
        before.append(piece)
    return pair.codec.encode(before, pair.bos_id)


def decode(pair: Pair, prompt: Sequence[int], sampling: Sampling, limit: int) -> list[int]:
    """The ids of a reply, the stop token included."""
    for _ in pair.backend.prefill(prompt, 0):
        pass
    reader = ReplyText(pair.codec, pair.stops)

    def cut(offered: tuple[int, ...]) -> tuple[int, bool]:
        taken = reader.take(offered)
        return taken.kept, taken.ended

    controls = Controls(0, sampling)
    limit = min(limit, pair.backend.capacity + 1 - len(prompt))
    steps = speculate(pair.backend, len(prompt), lambda: controls, cut, limit) if limit > 0 else iter(())
    return [token for step in steps for token in step.tokens]


def prompts(pair: Pair, count: int, seed: int, known: set[str], first: int) -> Iterator[tuple[int, str]]:
    """Up to `count` new prompts that the target writes, each with the number of its attempt, from `first` on.

    Args:
        known: Prompts that there are, lower case and single spaces; new ones are added.
    """
    start = user_prefix(pair)
    if len(start) < 2:
        raise TrainError("The chat template has nothing before a user's text.", "Give prompts with --data.")
    for attempt in range(first, first + count * ATTEMPTS):
        if count == 0:
            return
        sampling = Sampling(temperature=1.0, top_p=TOP_P, seed=_seed(seed, attempt))
        ids = decode(pair, start, sampling, PROMPT_TOKENS)
        text = pair.codec.decode([i for i in ids if i not in pair.stops.ids]).strip()
        plain = _plain(text)
        if plain and plain not in known:
            known.add(plain)
            count -= 1
            yield attempt, text


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


def _seed(seed: int, attempt: int) -> int:
    return seed * 1_000_003 + attempt


def sample(
    pair: Pair,
    file: Path,
    given: Sequence[Line] | None,
    count: int,
    limit: int,
    temperatures: Sequence[float],
    seed: int,
    told: Callable[[int, int, int], None],
) -> list[Line]:
    """Fill a JSONL file with conversations, and read it.

    Args:
        given: Prompts to answer; None: the target writes `count` of them.
        limit: Tokens of a reply at most.
        temperatures: In turn; 0 is greedy.
        told: Told conversations done, of how many, and reply tokens so far.
    """
    done = read_lines(_whole(file)) if file.is_file() else []
    tokens = sum(len(line.reply_ids) for line in done)
    total, number = count if given is None else len(given), len(done)
    if given is None:
        asked = prompts(pair, count - number, seed, {_plain(line.prompt) for line in done}, _attempts(file))
    else:
        asked = enumerate((line.prompt for line in given[number:]), number)
    with file.open("a", encoding="utf-8") as out:
        for attempt, prompt in asked:
            temperature = temperatures[number % len(temperatures)]
            sampling = Sampling(temperature=temperature, top_p=TOP_P if temperature else 1.0, seed=_seed(seed, attempt))
            ids = decode(pair, prompt_ids(pair, prompt), sampling, limit)
            kind = "self" if given is None else given[number].kind
            line = {"prompt": prompt, "reply_ids": ids, "temperature": temperature, "source": kind, "attempt": attempt}
            out.write(json.dumps(line) + "\n")
            out.flush()
            number, tokens = number + 1, tokens + len(ids)
            told(number, total, tokens)
    return read_lines(file)


def _attempts(file: Path) -> int:
    """Attempts at prompts that the lines of a file took."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return int(json.loads(lines[-1])["attempt"]) + 1 if lines else 0


def prompt_ids(pair: Pair, prompt: str) -> list[int]:
    """The ids of a conversation that begins with `prompt`."""
    return pair.codec.encode(pair.template.render((Message("user", prompt),)), pair.bos_id)


def _whole(file: Path) -> Path:
    """The file without a last line that was cut off."""
    text = file.read_bytes()
    if text and not text.endswith(b"\n"):
        file.write_bytes(text[: text.rfind(b"\n") + 1])
    return file
