"""What a run will need before it begins: disk, memory and time, from the sizes of target and draft. Knows no tensors.

Operations count two for a multiplication and an addition; a backward pass is twice a forward one.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from eagle3chat.engine.config import DraftConfig, TargetConfig
from eagle3chat.engine.errors import TrainError
from eagle3chat.engine.layout import draft_tensors, target_modules

BFLOAT16, FLOAT32 = 2, 4
SHARE = 0.5  # of the speed of a large product that a whole pass reaches


@dataclass(frozen=True, slots=True)
class Needs:
    """An estimate. Seconds are for one machine's speed, see `estimate`."""

    disk_bytes: int  # of the features, a checkpoint and the draft
    memory_bytes: int  # above the target's own
    feature_seconds: float
    epoch_seconds: float

    def text(self, epochs: float | None) -> str:
        """A line for people; `epochs` None: the run's time is given."""
        gib = 1 << 30
        time = f"{_span(self.feature_seconds)} for the target's features"
        if epochs is None:
            time += f", then an epoch every {_span(self.epoch_seconds)}"
        else:
            time += f", then about {_span(self.epoch_seconds * epochs)} of training"
        return f"needs {self.disk_bytes / gib:.2f} GiB on disk, {self.memory_bytes / gib:.2f} GiB of memory; {time}"

    def check(self, directory: Path, there: int) -> None:
        """Raise TrainError when the disk has no room; `there` bytes are written already."""
        free = shutil.disk_usage(directory).free
        if self.disk_bytes - there > free:
            gib = 1 << 30
            what = f"The run needs {self.disk_bytes / gib:.1f} GiB at {directory}, where {free / gib:.1f} GiB are free"
            raise TrainError(f"{what}.", "Use fewer conversations, or an --output-dir with more room.")


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def estimate(
    target: TargetConfig, draft: DraftConfig, tokens: int, reply_tokens: int, depth: int, speed: float
) -> Needs:
    """The needs of a run.

    Args:
        tokens: Of all conversations.
        reply_tokens: Of their replies.
        depth: Training-time steps.
        speed: Operations a second of a large matrix product on all workers.
    """
    token_bytes = BFLOAT16 * draft.tap_width * tokens + (BFLOAT16 * target.hidden_size + 12) * reply_tokens
    weights = sum(_size(shape) for shape in draft_tensors(draft).values())
    modules = {module: rows * columns for module, rows, columns in target_modules(target)}
    head = target.vocab_size * target.hidden_size
    trunk = sum(modules.values()) - modules.get("model.embed_tokens", 0) - modules.get("lm_head", 0)
    features = 2 * trunk * tokens + 2 * head * reply_tokens
    soft = 2 * draft.draft_vocab_size * target.hidden_size
    once = 6 * draft.tap_width * draft.hidden_size * tokens
    steps = 6 * (weights - draft.tap_width * draft.hidden_size) * depth * reply_tokens
    return Needs(
        disk_bytes=token_bytes + weights * (3 * FLOAT32 + BFLOAT16),
        memory_bytes=weights * (5 * FLOAT32 + BFLOAT16) + 2 * head * BFLOAT16 + (1 << 30),
        feature_seconds=features / (speed * SHARE),
        epoch_seconds=(once + steps + soft * reply_tokens) / (speed * SHARE),
    )


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size
