"""A training run from a target to a draft's directory: data, features, updates, files. Takes up what is there.

Knows the order of the work; each part is its own module's.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from eagle3chat.engine.bundle import Bundle, open_bundle
from eagle3chat.engine.checkpoint import open_draft
from eagle3chat.engine.errors import TrainError
from eagle3chat.engine.pair import Pair
from eagle3chat.engine.tensor_file import read_header
from eagle3chat.engine.torch_device import pick_device
from eagle3chat.engine.torch_target import Precision, Target
from eagle3chat.engine.torch_weights import Checkpoint
from eagle3chat.train.conversations import Conversation, Line, conversations, read_lines, split
from eagle3chat.train.display import Display
from eagle3chat.train.job import Job, check, claim, new_config
from eagle3chat.train.journal import Journal, Measurement, Update
from eagle3chat.train.needs import estimate
from eagle3chat.train.rendering import renderer
from eagle3chat.train.rounds import Rounds
from eagle3chat.train.torch_acceptance import rounds
from eagle3chat.train.torch_features import Store
from eagle3chat.train.torch_head import Head
from eagle3chat.train.torch_loss import SoftTargets
from eagle3chat.train.torch_output import write_all
from eagle3chat.train.torch_sampling import open_writer, sample
from eagle3chat.train.torch_trainer import Limit, Trainer, batches
from eagle3chat.train.torch_weights_file import (
    TENSORS,
    Learned,
    TargetRows,
    from_source,
    from_target,
    read_target_rows,
    with_vocabulary,
)
from eagle3chat.train.vocabulary import Vocabulary, choose

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
DATA, FEATURES, JOURNAL, PAUSE = "data.jsonl", "features", "log.jsonl", "pause"
CHAIN = 3  # that a draft is measured with
WATCHED = 48  # held-out conversations that a running measurement takes


@dataclass(frozen=True, slots=True)
class Data:
    """What there is to learn from, and what is held out."""

    learned: tuple[Conversation, ...]
    held_out: tuple[Conversation, ...]
    words: str  # where it comes from


def make_draft(job: Job, display: Display) -> Path:
    """Do a whole run, or what is left of it; the draft's directory.

    Raises:
        Eagle3Error: The target or the draft to start from cannot be opened, the data is not the target's, or the
            output directory belongs to another run.
    """
    check(job)
    bundle = open_bundle(job.bundle)
    start, given = _start(job, bundle), None if job.data is None else read_lines(job.data)
    begun = claim(job, bundle.manifest)
    if job.workers > 1:
        torch.set_num_threads(1)  # each worker computes on its own thread
    data = _data(job, bundle, given, display)
    dtype, device = DTYPES[job.dtype], pick_device(job.device)
    checkpoint = Checkpoint(bundle.target_files)
    rows = read_target_rows(bundle.manifest.target, checkpoint, dtype)
    vocabulary = choose(data.learned, job.vocabulary, bundle.manifest.target.vocab_size)
    learned = _begin(job, bundle, start, rows, vocabulary)
    display.line(
        f"{len(data.learned)} conversations to learn from, {len(data.held_out)} held out; the draft vocabulary of"
        f" {len(vocabulary.target_ids)} covers {vocabulary.coverage:.2%} of the replies' tokens"
    )
    store = _features(job, bundle, checkpoint, learned, data, device, display, told=not begun)
    trainer = _trainer(job, bundle, learned, rows, store, data, device)
    try:
        journal = Journal(job.work / JOURNAL)
        if trainer.load():
            display.line(f"goes on after update {trainer.updates}")
        _train(job, trainer, store, data, journal, display)
        held = [store.read(conversation) for conversation in data.held_out]
        write_all(job, bundle.manifest, trainer, data.learned, data.held_out, held, data.words, vocabulary, journal)
    finally:
        trainer.close()
        display.done()
    return job.output


def _start(job: Job, bundle: Bundle) -> Learned | None:
    """The draft to begin as.

    Raises:
        TrainError: It says that it was trained for another target.
        CheckpointError: It does not fit the target.
    """
    if job.start is None:
        return None
    name = bundle.manifest.name
    file = job.start / TENSORS
    theirs = read_header(file).metadata.get("target") if file.is_file() else None
    if theirs not in (None, name):
        raise TrainError(
            f"The draft {job.start.name} was trained for {theirs!r}, not for {name!r}.",
            "Leave --from out, or use a draft of this target.",
        )
    learned = from_source(open_draft(job.start, bundle.manifest.target, job.taps))
    c = learned.config
    if c.num_layers != 1 or not c.own_head or c.own_embedding:
        raise TrainError(
            f"The draft {job.start.name} has layers, a head or an embedding that cannot be trained here.",
            "Leave --from out: a new draft has one layer, its own head and the target's embedding.",
        )
    return learned


def _begin(job: Job, bundle: Bundle, start: Learned | None, rows: TargetRows, vocabulary: Vocabulary) -> Learned:
    ids = torch.tensor(vocabulary.target_ids, dtype=torch.int64)
    if start is not None:
        return with_vocabulary(start, ids, rows)
    return from_target(new_config(bundle.manifest, len(ids), job.taps), rows, ids, job.recipe.seed)


def _data(job: Job, bundle: Bundle, given: Sequence[Line] | None, display: Display) -> Data:
    """Whole conversations of the target, sampled where they are missing."""
    whole = [line for line in given or () if line.reply_ids]
    asked = None if given is None else [line for line in given if not line.reply_ids]
    if asked is None or asked:
        pair = open_writer(bundle.path, job.longest)
        try:
            whole += _sampled(job, pair, asked, display)
        finally:
            pair.close()
    found = conversations(whole, renderer(bundle), bundle.manifest.target.vocab_size, job.longest)
    learned, held_out = split(found, job.held_out)
    if not held_out and len(found) > 1:  # few prompts: one of them at least
        learned, held_out = found[1:], found[:1]
    if not learned or not held_out:
        raise TrainError("There are too few conversations to learn from.", "Give more --data or --conversations.")
    words = "Written by the target itself" if job.data is None else f"From {job.data.name}"
    return Data(tuple(learned), tuple(held_out), words)


def _sampled(job: Job, pair: Pair, asked: Sequence[Line] | None, display: Display) -> list[Line]:
    started, first = time.monotonic(), [-1]

    def told(done: int, total: int, tokens: int) -> None:
        if first[0] < 0:
            first[0] = done
        pace = (done - first[0]) / (time.monotonic() - started)
        left = (total - done) / pace if pace > 0 else None
        display.stage(f"writing conversations, {tokens} reply tokens", done / total, left)

    return sample(
        pair, job.work / DATA, asked, job.conversations, job.reply_tokens, job.temperatures, job.recipe.seed, told
    )


def _features(
    job: Job,
    bundle: Bundle,
    checkpoint: Checkpoint,
    learned: Learned,
    data: Data,
    device: torch.device,
    display: Display,
    *,
    told: bool,
) -> Store:
    """The store, filled; what the run needs is said before."""
    everything = (*data.held_out, *data.learned)
    tokens, replies = sum(len(c.ids) for c in everything), sum(len(c.reply) for c in everything)
    again = sum(len(c.reply) * c.times for c in data.learned) / sum(len(c.reply) for c in data.learned)
    target = bundle.manifest.target
    needs = estimate(
        target, learned.config, tokens, replies, job.recipe.depth, _speed(DTYPES[job.dtype], device) * job.workers
    )
    store = Store(job.work / FEATURES)
    missing = [conversation for conversation in everything if conversation not in store]
    share = sum(len(c.ids) for c in missing) / tokens
    if told:
        left = dataclasses.replace(
            needs, feature_seconds=needs.feature_seconds * share, epoch_seconds=needs.epoch_seconds * again
        )
        display.line(left.text(None if job.minutes or job.until else job.epochs))
    needs.check(job.work, store.nbytes)
    if not missing:
        return store
    precision = Precision(DTYPES[job.dtype], False, device)
    length = max(len(c.ids) for c in everything)
    opened = Target(target, checkpoint, learned.config.taps, length, precision, lambda share: None)

    def shown(done: int, total: int, seconds: float) -> None:
        display.stage("the target's features", done / total, (total - done) * seconds / done)

    store.fill(opened, everything, shown)
    return store


def _speed(dtype: torch.dtype, device: torch.device) -> float:
    """Operations a second of a large product there, when nothing else is in its way: that of the fastest of some."""
    a, b = (torch.ones(512, 512, dtype=dtype, device=device) for _ in range(2))
    least, end = float("inf"), time.perf_counter() + 0.1
    while (started := time.perf_counter()) < end or least == float("inf"):
        (a @ b)[0, 0].item()
        least = min(least, time.perf_counter() - started)
    return 2.0 * 512**3 / least


def _trainer(
    job: Job, bundle: Bundle, learned: Learned, rows: TargetRows, store: Store, data: Data, device: torch.device
) -> Trainer:
    target = bundle.manifest.target
    draft_ids = torch.full((target.vocab_size,), -1)
    draft_ids[learned.target_ids] = torch.arange(len(learned.target_ids))
    said = rows.head[learned.target_ids].to(device)
    targets = SoftTargets(said, draft_ids.to(device), job.recipe.hard, target.logit_softcap)
    head = Head(learned.config, rows.embedding.to(device), max(len(c.ids) for c in data.learned + data.held_out) + 8)
    an_epoch = sum(1 for _ in batches(data.learned, job.recipe.seed, 0, job.recipe.batch_tokens))
    limit = Limit(updates=max(1, math.ceil(job.epochs * an_epoch)))
    if job.until or job.minutes:
        limit = Limit(until=job.until) if job.until else Limit(seconds=60.0 * job.minutes)
    return Trainer(learned, head, targets, store, data.learned, job.recipe, limit, job.work, job.workers)


def _train(job: Job, trainer: Trainer, store: Store, data: Data, journal: Journal, display: Display) -> None:
    watched = [store.read(c) for c in sorted(data.held_out, key=lambda c: c.key)[:WATCHED]]
    last = time.monotonic()

    def measure() -> None:
        found: Rounds = rounds(trainer.head, trainer.working, trainer.target_ids, watched, CHAIN)
        measurement = Measurement(trainer.updates, trainer.share, found)
        journal.add(measurement)
        display.measurement(measurement)

    def told(update: Update) -> None:
        nonlocal last
        journal.add(update)
        display.update(update)
        while (job.work / PAUSE).exists():
            time.sleep(0.5)
        if time.monotonic() - last > job.pace:
            trainer.save()
            measure()
            last = time.monotonic()

    if trainer.updates == 0:
        measure()
    trainer.run(told)
    trainer.save()
    measure()
