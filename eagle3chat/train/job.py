"""What a training run is asked to do, and the identity that a run's directory keeps. Knows no tensors."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3chat.engine.config import DraftConfig, Manifest
from eagle3chat.engine.errors import TrainError
from eagle3chat.train.recipe import Recipe

RUN_FILE = "run.json"
WORK = "training"  # inside the output directory: all that is needed to go on, and nothing that the draft needs
VOCABULARY = 12288
TEMPERATURES = (0.0, 0.7, 1.0)


@dataclass(frozen=True, slots=True)
class Job:
    """A run.

    Args:
        bundle: The target's; a draft in it is not looked at.
        output: The draft's directory.
        start: A draft to begin as, or None: the target's last layer.
        data: JSONL of prompts or conversations, or None: the target writes its own.
        conversations: How many, where the target writes.
        reply_tokens: Of a sampled reply at most.
        temperatures: Of the sampled replies, in turn; 0 is greedy.
        vocabulary: Size of the draft's.
        taps: Boundaries, or None: early, middle and late.
        held_out: Share of the prompts.
        longest: Tokens of a conversation at most.
        epochs, minutes, until: When it ends; the last two by the clock, `until` in seconds since the epoch.
        workers: Threads, each with a part of its own.
        pace: Seconds between two measurements, each with a checkpoint.
    """

    bundle: Path
    output: Path
    start: Path | None = None
    data: Path | None = None
    conversations: int = 2000
    reply_tokens: int = 256
    temperatures: tuple[float, ...] = TEMPERATURES
    vocabulary: int = VOCABULARY
    taps: tuple[int, ...] | None = None
    held_out: float = 0.03
    longest: int = 1024
    epochs: float = 8.0
    minutes: float = 0.0
    until: float = 0.0
    workers: int = 1
    pace: float = 300.0
    dtype: str = "bfloat16"  # computed in
    device: str = "cpu"  # "auto", "cpu", "cuda", "cuda:N"
    recipe: Recipe = field(default_factory=Recipe)

    @property
    def work(self) -> Path:
        """Where a run keeps what it needs to go on."""
        return self.output / WORK


def check(job: Job) -> None:
    """Raise TrainError when a number is out of range."""
    if job.conversations < 2 or job.reply_tokens < 2:
        raise TrainError("A draft needs conversations to learn from.", "Use --conversations 100 or more.")
    check_temperatures(job.temperatures)
    if not 0.0 < job.held_out < 0.9:
        raise TrainError(f"A held-out share of {job.held_out:g} is out of range.", "Use one such as 0.03.")
    if job.vocabulary < 16:
        raise TrainError(f"A draft vocabulary of {job.vocabulary} is too small.", "Use --vocabulary 8192 or alike.")
    if job.epochs <= 0 or job.minutes < 0 or job.workers < 1:
        raise TrainError("The run's length and its threads must be above 0.", "See eagle3chat train --help.")


def check_temperatures(temperatures: Sequence[float]) -> None:
    """Raise TrainError when there is none, or one cannot be sampled at."""
    if not temperatures or not all(0.0 <= t <= 2.0 for t in temperatures):
        raise TrainError("Replies are sampled at temperatures from 0 to 2.", "Use --temperatures 0,0.7,1 or alike.")


def new_config(manifest: Manifest, vocabulary: int, taps: tuple[int, ...] | None) -> DraftConfig:
    """A new draft for a target: one layer of the target's own shape, three taps.

    The taps are those that EAGLE-3's code takes (boundaries 2, L / 2, L - 3), less for targets of few layers.
    """
    target = manifest.target
    layers = target.num_layers
    kind = target.kind(layers - 1)
    usual = (2, layers // 2, layers - 3) if layers >= 8 else tuple(sorted({0, layers // 2, layers - 1} - {-1}))
    inner = target.intermediate_size or 4 * target.hidden_size
    return DraftConfig(
        hidden_size=target.hidden_size,
        intermediate_size=inner,
        num_heads=target.num_heads,
        num_kv_heads=kind.num_kv_heads,
        head_dim=kind.head_dim,
        rms_eps=target.rms_eps,
        rope=dataclasses.replace(kind.rope, kind="default") if kind.rope.kind != "default" else kind.rope,
        draft_vocab_size=min(vocabulary, target.vocab_size),
        target_hidden_size=target.hidden_size,
        taps=usual if taps is None else taps,
    )


def target_print(manifest: Manifest) -> str:
    """Names a target by its numbers and its tokenizer; the weights count by their sources' hashes where known."""
    facts = [dataclasses.asdict(manifest.target), manifest.tokenizer_sha256]
    facts += [dataclasses.asdict(source) for source in manifest.sources if source.role == "target"]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def file_print(path: Path) -> str:
    """Names a file by its contents; of a directory, its config and weights."""
    files = [path / "config.json", path / "model.safetensors"] if path.is_dir() else [path]
    whole = hashlib.sha256()
    for file in files:
        if file.is_file():
            with file.open("rb") as opened:
                whole.update(hashlib.file_digest(opened, "sha256").digest())
    return whole.hexdigest()[:16]


def claim(job: Job, manifest: Manifest) -> bool:
    """Make the run's directory, or find that it is this run's and was begun before (True).

    Raises:
        TrainError: Another run's files are there, or it cannot be written.
    """
    facts: dict[str, Any] = {
        "target": manifest.name,
        "target_print": target_print(manifest),
        "from": "" if job.start is None else file_print(job.start),
        "data": "" if job.data is None else file_print(job.data),
        "conversations": job.conversations if job.data is None else 0,
        "vocabulary": job.vocabulary,
        "recipe": json.loads(json.dumps(dataclasses.asdict(job.recipe))),
    }
    file = job.work / RUN_FILE
    try:
        job.work.mkdir(parents=True, exist_ok=True)
        if file.is_file():
            _compare(json.loads(file.read_text(encoding="utf-8")), facts, job.output)
            return True
        part = file.with_name(f".{RUN_FILE}.part")
        part.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        os.replace(part, file)
    except (OSError, ValueError) as error:
        raise TrainError(f"{job.output} cannot be used ({error}).", "Choose another --output-dir.") from error
    return False


def _compare(kept: Any, facts: dict[str, Any], output: Path) -> None:
    kept = kept if isinstance(kept, dict) else {}
    different = [name for name in facts if kept.get(name) != facts[name]]
    if not different:
        return
    name = different[0]
    if name.startswith("target"):
        what = f"{output} holds a run for the target {kept.get('target')!r}, not for {facts['target']!r}"
        raise TrainError(f"{what} as it is here.", "Choose another --output-dir.")
    raise TrainError(f"{output} holds a run with another {name!r}.", "Choose another --output-dir, or delete it.")
