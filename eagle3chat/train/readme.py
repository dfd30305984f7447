"""The README.md beside a trained draft: what it is for, its data, its recipe, what it does. Knows no tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from eagle3chat.engine.config import DraftConfig
from eagle3chat.train.recipe import Recipe
from eagle3chat.train.rounds import Rounds


@dataclass(frozen=True, slots=True)
class Story:
    """What there is to tell.

    Args:
        kinds: Rounds on held-out conversations by kind, with the number of conversations.
    """

    target: str
    start: str  # the draft that it began as; empty: the target's own layer
    data: str  # what the conversations are, in words
    conversations: int
    reply_tokens: int
    held_out: int  # conversations
    coverage: float
    config: DraftConfig
    recipe: Recipe
    updates: int
    epochs: float
    minutes: float
    chain: int
    whole: Rounds
    kinds: Mapping[str, tuple[int, Rounds]]


def write(story: Story) -> str:
    """The Markdown text."""
    parts = [_what(story), _data(story), _recipe(story), _measured(story), _limits(story)]
    return "\n\n".join([f"# An EAGLE-3 draft for {story.target}", *parts]) + "\n"


def _what(story: Story) -> str:
    c = story.config
    return (
        f"SpecForge layout (`midlayer.` prefix, flat config, d2t offsets, t2d mask, bfloat16). Width {c.hidden_size},"
        f" MLP {c.intermediate_size}, draft vocabulary {c.draft_vocab_size}; taps at the boundaries"
        f" {', '.join(map(str, c.taps))}; the embedding is the target's.\nIt drafts for {story.target} and for no other"
        " target."
    )


def _data(story: Story) -> str:
    return (
        f"## Data\n\n{story.data}: {story.conversations} conversations, {story.reply_tokens} reply tokens;"
        f" {story.held_out} conversations are held out by prompt. The draft vocabulary covers {story.coverage:.2%} of"
        " the replies' tokens."
    )


def _recipe(story: Story) -> str:
    r = story.recipe
    bits = f" In its last {r.few_bits:.0%} head and MLP were computed with as 4 bits keep them." if r.few_bits else ""
    begun = f"the draft {story.start}" if story.start else "the target's last layer, final norm and head rows"
    return (
        f"## Recipe\n\nBegun as {begun}. Training-time test of {r.depth} steps, weights"
        f" {', '.join(f'{w:.3g}' for w in r.weights)}; soft targets over the draft vocabulary, the best token counting"
        f" {r.hard:g} more; loss on reply tokens. AdamW {r.learning_rate:g}, betas {r.betas[0]:g} and {r.betas[1]:g},"
        f" cosine to 0, gradient clipped at {r.clip:g}, about {r.batch_tokens} reply tokens an update:"
        f" {story.updates} updates, {story.epochs:.1f} epochs, {story.minutes:.0f} minutes. Seed {r.seed}.{bits}"
    )


def _measured(story: Story) -> str:
    rows = [("all", story.held_out, story.whole)]
    rows += [(kind or "other", count, rounds) for kind, (count, rounds) in sorted(story.kinds.items())]
    lines = [f"| {kind} | {count} | {rounds.tau:.3f} | {_places(rounds)} |" for kind, count, rounds in rows]
    return "\n".join(
        [
            "## Measured",
            "",
            f"Chain {story.chain}, most probable tokens, on the held-out replies as they stand; tau is emitted tokens /"
            " rounds, acceptance is accepted / judged by place.",
            "",
            "| kind | conversations | tau | acceptance |",
            "|---|---|---|---|",
            *lines,
        ]
    )


def _limits(story: Story) -> str:
    return (
        "## Limits\n\nHeld-out prompts are of the same making as the training data: expect less on other prompts, in"
        " other languages and in contexts much longer than the conversations. Trained for chains of up to"
        f" {story.recipe.depth}."
    )


def _places(rounds: Rounds) -> str:
    return ", ".join(f"{p:.3f}" for p in rounds.acceptance)
