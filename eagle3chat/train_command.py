"""`eagle3chat train`: a draft for a target; `train data`: only its conversations; `train pack`: a draft in 4 bits.

Knows flags and streams; the work is that of `train`.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import os
import sys
from pathlib import Path
from typing import TypeVar

from eagle3chat.engine.errors import BackendError, SettingError, TrainError
from eagle3chat.opening import Progress
from eagle3chat.train.display import Display
from eagle3chat.train.job import WORK, Job, check_temperatures
from eagle3chat.train.recipe import Recipe
from eagle3chat.wishes import flag

T = TypeVar("T", Job, Recipe)
BUNDLE = "target"  # in a run's directory, of a target that came as a checkpoint


def train(args: argparse.Namespace) -> int:
    """Train, write conversations or pack; the exit code.

    Raises:
        Eagle3Error: Anything that the person can mend.
    """
    display = Display(sys.stderr)
    try:
        return _train(args, display)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise BackendError("torch is not installed, and training needs it.", "Run: pip install torch") from error
    finally:
        display.done()


def _train(args: argparse.Namespace, display: Display) -> int:
    if flag(args, "action") == "data":
        return _write_data(args, display)
    if flag(args, "action") == "pack":
        from eagle3chat.train.torch_packing import pack

        draft, output = Path(args.draft).expanduser(), Path(flag(args, "output_dir")).expanduser()
        print(pack(draft, output, dense=bool(flag(args, "dense"))))
        return 0
    if not flag(args, "output_dir"):
        raise SettingError("The output directory is missing.", "Name it with --output-dir.")
    from eagle3chat.train.torch_job import make_draft

    print(make_draft(read_job(args, Path(flag(args, "output_dir")).expanduser()), display))
    return 0


def read_job(args: argparse.Namespace, output: Path) -> Job:
    """The job of the flags.

    Raises:
        Eagle3Error: A flag is out of range, or the target cannot be made a bundle.
    """
    recipe = _given(args, Recipe(), "learning_rate", "batch_tokens", "depth", "hard", "few_bits", "seed")
    names = (
        "conversations",
        "temperatures",
        "vocabulary",
        "taps",
        "held_out",
        "epochs",
        "minutes",
        "workers",
        "pace",
        "device",
    )
    job = Job(bundle=Path(), output=output, workers=_cores(), recipe=recipe)
    job = _given(args, job, *names)
    until = flag(args, "until")
    data, start, compute = flag(args, "data"), flag(args, "start"), flag(args, "compute")
    return dataclasses.replace(
        job,
        bundle=_bundle(args, output / WORK / BUNDLE),
        start=Path(start).expanduser() if start else None,
        data=Path(data).expanduser() if data else None,
        reply_tokens=flag(args, "max_new_tokens") or job.reply_tokens,
        until=_moment(until) if until else 0.0,
        dtype=compute or job.dtype,
    )


def _given(args: argparse.Namespace, value: T, *names: str) -> T:
    """The value with the flags that were given."""
    found = {name: flag(args, name) for name in names if flag(args, name) is not None}
    return dataclasses.replace(value, **found)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _moment(text: str, now: datetime.datetime | None = None) -> float:
    """The next time that the clock shows HH:MM, in seconds since the epoch."""
    now = now or datetime.datetime.now()
    try:
        hour, minute = (int(part) for part in text.split(":"))
        moment = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
    except ValueError:
        raise SettingError(f"{text!r} is not a time of day.", "Use --until 18:30 or alike.") from None
    return (moment if moment > now else moment + datetime.timedelta(days=1)).timestamp()


def _bundle(args: argparse.Namespace, place: Path) -> Path:
    """The target's bundle: the one named, the built-in one, or one made of a checkpoint at `place`."""
    model, target = flag(args, "model"), flag(args, "target")
    if model:
        return Path(model).expanduser()
    progress = Progress(sys.stderr)
    try:
        if not target:
            from eagle3chat.engine.default_pair import default_bundle

            return default_bundle(progress=progress)
        from eagle3chat.engine.export import export_bundle

        source = Path(target).expanduser()
        if not source.exists():
            raise TrainError(f"{source} does not exist.", "Give a GGUF file or a Hugging Face directory.")
        place.parent.mkdir(parents=True, exist_ok=True)
        return export_bundle(
            source, None, place, template=flag(args, "template"), chain=0, progress=progress, command="eagle3chat train"
        )
    finally:
        progress.done()


def _write_data(args: argparse.Namespace, display: Display) -> int:
    """`train data`."""
    from eagle3chat.train.conversations import read_lines
    from eagle3chat.train.torch_sampling import open_writer, sample

    file = Path(flag(args, "output")).expanduser()
    plain = _given(args, Job(bundle=Path(), output=file.parent), "temperatures")
    check_temperatures(plain.temperatures)
    count = flag(args, "conversations") or plain.conversations
    given = flag(args, "data")
    lines = read_lines(Path(given).expanduser()) if given else None
    pair = open_writer(_bundle(args, file.with_name(f"{file.name}-{BUNDLE}")), plain.longest)
    try:
        made = sample(
            pair,
            file,
            lines,
            count,
            flag(args, "max_new_tokens") or plain.reply_tokens,
            plain.temperatures,
            flag(args, "seed") or 0,
            lambda done, total, tokens: display.stage(f"writing conversations, {tokens} reply tokens", done / total),
        )
    finally:
        pair.close()
    display.line(f"{len(made)} conversations, {sum(len(line.reply_ids) for line in made)} reply tokens")
    print(file)
    return 0
