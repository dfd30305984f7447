"""The files of a finished run: the draft in SpecForge's layout, its README.md, its curves. Knows no training."""

from __future__ import annotations

from collections.abc import Sequence

from eagle3chat.engine.config import Manifest
from eagle3chat.train.conversations import Conversation
from eagle3chat.train.job import Job, target_print
from eagle3chat.train.journal import Journal, Update
from eagle3chat.train.plot import draw
from eagle3chat.train.readme import Story, write
from eagle3chat.train.rounds import Rounds
from eagle3chat.train.torch_acceptance import rounds_of
from eagle3chat.train.torch_features import Features
from eagle3chat.train.torch_trainer import Trainer
from eagle3chat.train.torch_weights_file import save
from eagle3chat.train.vocabulary import Vocabulary

CHAIN = 3
README, CURVES = "README.md", "training.svg"


def write_all(
    job: Job,
    manifest: Manifest,
    trainer: Trainer,
    learned: Sequence[Conversation],
    held_out: Sequence[Conversation],
    features: Sequence[Features],
    words: str,
    vocabulary: Vocabulary,
    journal: Journal,
) -> None:
    """Write the output directory's files.

    Args:
        features: Of `held_out`, in its order.
        words: Where the data comes from.
    """
    facts = {"target": manifest.name, "target_print": target_print(manifest)}
    save(trainer.finished, job.output, manifest.target, facts)
    entries = journal.read()
    whole, kinds = _measured(trainer, held_out, features)
    updates = [entry for entry in entries if isinstance(entry, Update)]
    story = Story(
        target=manifest.name,
        start="" if job.start is None else job.start.name,
        data=words,
        conversations=len(learned),
        reply_tokens=sum(len(c.reply) for c in learned),
        held_out=len(held_out),
        coverage=vocabulary.coverage,
        config=trainer.config,
        recipe=job.recipe,
        updates=trainer.updates,
        epochs=sum(u.tokens for u in updates) / max(1, sum(len(c.reply) * c.times for c in learned)),
        minutes=sum(u.seconds for u in updates) / 60.0,
        chain=CHAIN,
        whole=whole,
        kinds=kinds,
    )
    (job.output / README).write_text(write(story), encoding="utf-8")
    (job.output / CURVES).write_text(draw(entries, f"An EAGLE-3 draft for {manifest.name}"), encoding="utf-8")


def _measured(
    trainer: Trainer, held_out: Sequence[Conversation], features: Sequence[Features]
) -> tuple[Rounds, dict[str, tuple[int, Rounds]]]:
    """Rounds on all that is held out, and by kind with the number of conversations."""
    whole, kinds = Rounds.none(CHAIN), dict[str, tuple[int, Rounds]]()
    dtype = trainer.head.embedding.dtype
    weights = {name: value.to(dtype) for name, value in trainer.finished.weights.items()}
    for conversation, seen in zip(held_out, features, strict=True):
        found = rounds_of(trainer.head, weights, trainer.target_ids, seen, CHAIN)
        count, before = kinds.get(conversation.kind, (0, Rounds.none(CHAIN)))
        whole, kinds[conversation.kind] = whole + found, (count + 1, before + found)
    return whole, kinds
