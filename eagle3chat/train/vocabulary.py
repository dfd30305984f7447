"""Which tokens a draft may propose: the most frequent ones of its data. Knows no tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from eagle3chat.train.conversations import Conversation


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A draft vocabulary.

    Args:
        target_ids: Ascending.
        coverage: The share of the replies' tokens that are in it.
    """

    target_ids: tuple[int, ...]
    coverage: float


def coverage(target_ids: Iterable[int], conversations: Iterable[Conversation]) -> float:
    """The share of the replies' tokens that are among `target_ids`; 0 without replies."""
    known = set(target_ids)
    total = hits = 0
    for conversation in conversations:
        total += len(conversation.reply)
        hits += sum(token in known for token in conversation.reply)
    return hits / total if total else 0.0


def choose(conversations: Sequence[Conversation], size: int, vocab_size: int) -> Vocabulary:
    """The `size` most frequent tokens of prompts and replies; low ids first where the data has no more.

    Prompts count, since their rare words come back in other replies. A tokenizer's low ids are its frequent ones.
    """
    counts: Counter[int] = Counter()
    for conversation in conversations:
        counts.update(conversation.ids)
    order = sorted(range(vocab_size), key=lambda token: (-counts[token], token))
    ids = tuple(sorted(order[: min(size, vocab_size)]))
    return Vocabulary(ids, coverage(ids, conversations))
