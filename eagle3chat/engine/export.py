"""Making a bundle: a target and a draft from their own layouts into one directory.

    checkpoint.py       reads the sources            target_models.py   completes what a known one leaves out
    verifier.py         does the draft fit           recoding.py        quantises
    bundle_writer.py    writes, links, renames       provenance.py      hashes

Knows no layout but the bundle's.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle3chat import __version__
from eagle3chat.engine.bundle import CHAT_TEMPLATE, DRAFT, MAX_CHAIN, TARGET, TOKENIZER, TOKENIZER_CONFIG, open_bundle
from eagle3chat.engine.bundle_writer import beside, check_room, keep_files, write_json, write_part
from eagle3chat.engine.checkpoint import DraftSource, TargetSource, open_draft, open_target
from eagle3chat.engine.config import Manifest, Quantization, Source
from eagle3chat.engine.draft_embedding import rows_of
from eagle3chat.engine.errors import BundleError, SettingError
from eagle3chat.engine.hub import Located, located
from eagle3chat.engine.manifest import MANIFEST_FILE, write_manifest
from eagle3chat.engine.provenance import file_sha256, source_of
from eagle3chat.engine.quantise import Errors
from eagle3chat.engine.recoding import Changes, recoded_draft, recoded_target
from eagle3chat.engine.target_models import completed, target_model
from eagle3chat.engine.template_choice import choose_template
from eagle3chat.engine.tensor_file import LazyTensor
from eagle3chat.engine.verifier import check_verifier, read_verifier

__all__ = ["Changes", "Progress", "export_bundle", "file_sha256", "source_of"]

Progress = Callable[[str, float | None], None]
DEFAULT_CHAIN = 3
DEFAULT_MAX_CHAIN = 8
DEFAULT_MAX_PREFILL = 512


@dataclass(frozen=True, slots=True)
class _Sources:
    """A target and a draft as they will be written."""

    at: Located
    target: TargetSource
    original: TargetSource  # before it was quantised
    draft_at: Located | None = None
    draft: DraftSource | None = None
    draft_quantization: Quantization | None = None
    verifier: str = ""  # the target that the draft says it is for
    target_errors: Errors = dataclasses.field(default_factory=Errors)
    draft_errors: Errors = dataclasses.field(default_factory=Errors)


def export_bundle(
    target: Path | str,
    draft: Path | str | None,
    output_dir: Path,
    *,
    template: str | None = None,
    chain: int = DEFAULT_CHAIN,
    max_chain: int = DEFAULT_MAX_CHAIN,
    max_prefill: int = DEFAULT_MAX_PREFILL,
    max_seq_len: int | None = None,
    taps: Sequence[int] | None = None,
    own_embedding: bool | None = None,
    share_embedding: bool = False,
    changes: Changes | None = None,
    copy_target: bool = False,
    model: str | None = None,
    name: str | None = None,
    progress: Progress | None = None,
    remark: Callable[[str], None] | None = None,
    command: str = "",
) -> Path:
    """Make a bundle in `output_dir`, replacing one that is there.

    Args:
        target: A GGUF file, a Hugging Face directory, or the id of one on the hub.
        draft: The directory of an EAGLE-3 draft, or its id; None: the target alone.
        output_dir: New, empty, or a bundle.
        template: A built-in name, or a file with a Jinja template; None: the model's own, else by its tokens.
        chain: The default chain, 0..max_chain; 0 without a draft.
        max_prefill: Tokens of a prefill chunk.
        max_seq_len: The longest context that is offered, in positions; None: what the target was made for.
        taps, own_embedding: As for `open_draft`.
        share_embedding: The draft reads the target's embedding; refused where its own copy is another.
        changes: What is quantised; None: nothing.
        copy_target: Copy a target's files that need no change, instead of linking them.
        model: A name of target_models.py, for what the checkpoint leaves out.
        name: As shown; None: from the target's file.
        progress: Called with a stage and the fraction of the whole, 0..1.
        remark: Called with what the user should know: the draft's taps, what was decided, what quantising cost.
        command: For the record.

    Returns:
        `output_dir`.

    Raises:
        CheckpointError: A source cannot be read or converted exactly.
        BundleError: A source is damaged, or the bundle cannot be written.
        SettingError: A number is outside its range.
    """
    report = progress or (lambda stage, fraction: None)
    say = remark or (lambda text: None)
    _check_settings(chain, max_chain, max_prefill, max_seq_len)
    _check_output(output_dir)
    report("reading the target", 0.0)
    found = _read_target(str(target), changes or Changes(), model)
    if draft is not None:
        found = _read_draft(found, str(draft), changes or Changes(), taps, own_embedding, share_embedding)
    for text in found.draft.remarks if found.draft is not None else ():
        say(text)
    template_name, template_text = choose_template(template, found.target, model)
    check_room(output_dir, _bytes(found, copy_target))
    with beside(output_dir) as partial:
        work = _Work(report, found, copy_target)
        how = _write_parts(partial, found, template_text, copy_target, work)
        sources = _sources(found, work)
        report("checking the bundle", 0.97)
        offered = found.target.config.max_position
        manifest = dataclasses.replace(
            _manifest(found, sources),
            name=name or found.target.name,
            default_chain=0 if found.draft is None else chain,
            max_chain=0 if found.draft is None else max_chain,
            max_prefill=max_prefill,
            max_seq_len=min(max_seq_len or offered, offered),
            template=template_name,
            command=command,
        )
        write_manifest(partial, manifest)
        open_bundle(partial)
    report("done", 1.0)
    for text in (how, *_costs(found)):
        if text:
            say(text)
    return output_dir


def _manifest(found: _Sources, sources: tuple[Source, ...]) -> Manifest:
    """What the sources say; the rest is as a bundle has it that nobody asked anything of."""
    target, draft = found.target, found.draft
    return Manifest(
        name=target.name,
        draft_name="" if draft is None else draft.name,
        family=target.config.family,
        target=target.config,
        draft=None if draft is None else draft.config,
        quantization=target.quantization,
        default_chain=0,
        max_chain=0,
        min_prefill=1,
        max_prefill=DEFAULT_MAX_PREFILL,
        max_seq_len=target.config.max_position,
        template="model",
        bos_id=target.bos_id,
        stop_ids=target.stop_ids,
        tokenizer_sha256=hashlib.sha256(target.tokenizer).hexdigest(),
        sources=sources,
        command="",
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        version=__version__,
        draft_quantization=found.draft_quantization,
        extra={"verifier": found.verifier} if found.verifier else {},
    )


def _read_target(place: str, changes: Changes, model: str | None) -> _Sources:
    if model is not None:
        target_model(model)  # a wrong name is said before anything is downloaded
    at = located(place)
    target = open_target(at.path)
    if at.name:
        target = dataclasses.replace(target, name=at.name)
    if model is not None:
        target = completed(target, model)
    errors = Errors()
    return _Sources(at, recoded_target(target, changes, errors), target, target_errors=errors)


def _read_draft(
    found: _Sources,
    place: str,
    changes: Changes,
    taps: Sequence[int] | None,
    own_embedding: bool | None,
    share_embedding: bool,
) -> _Sources:
    at = located(place)
    rows = rows_of(found.original)
    draft = open_draft(at.path, found.target.config, taps, own_embedding, rows, share_embedding)
    if at.name:
        draft = dataclasses.replace(draft, name=at.name)
    verifier = read_verifier(at.path)
    check_verifier(at.path, verifier, found.target.tokenizer)
    errors = Errors()
    draft, quantization = recoded_draft(draft, changes, errors)
    return dataclasses.replace(
        found,
        draft_at=at,
        draft=draft,
        draft_quantization=quantization,
        draft_errors=errors,
        verifier=verifier.name,
    )


class _Work:
    """How far a bundle is: bytes written or looked at, and bytes hashed.

    Args:
        found: What is written.
        copy: The target's files, where they need no change.
    """

    def __init__(self, report: Progress, found: _Sources, copy: bool) -> None:
        self.report, self.stage, self.done = report, "writing the bundle", 0
        files = [*found.target.files, *(found.draft.files if found.draft is not None else ())]
        self.total = sum(tensor.size for tensor in _tensors(found)) + sum(file.stat().st_size for file in files)
        self.total += sum(file.stat().st_size for file in found.target.linkable) if copy else 0

    def __call__(self, size: int) -> None:
        self.done += size
        self.report(self.stage, 0.05 + 0.9 * min(1.0, self.done / max(1, self.total)))


def _tensors(found: _Sources) -> Iterator[LazyTensor]:
    yield from found.target.tensors
    if found.draft is not None:
        yield from found.draft.tensors


def _bytes(found: _Sources, copy: bool) -> int:
    """Of the tensors that will be written."""
    kept = bool(found.target.linkable) and not copy
    return sum(tensor.size for tensor in _tensors(found)) - kept * sum(tensor.size for tensor in found.target.tensors)


def _write_parts(path: Path, found: _Sources, template_text: str, copy: bool, work: _Work) -> str:
    """Everything but bundle.json; what the user should know of it."""
    target, how = found.target, ""
    if target.linkable:
        config = dict(target.config_json)
        how = keep_files(path / TARGET, target.linkable, target.tensors, config, copy, work)
    else:
        write_part(path / TARGET, target.tensors, dict(target.config_json), work)
    if found.draft is not None:
        write_part(path / DRAFT, found.draft.tensors, dataclasses.asdict(found.draft.config), work)
    (path / TOKENIZER).write_bytes(target.tokenizer)
    write_json(path / TOKENIZER_CONFIG, dict(target.tokenizer_config))
    if template_text:
        (path / CHAT_TEMPLATE).write_text(template_text, encoding="utf-8")
    return how


def _sources(found: _Sources, work: _Work) -> tuple[Source, ...]:
    """Names, sizes and hashes of what a bundle was made from."""
    work.stage = "hashing the sources"
    sources = [source_of("target", found.at.path, found.target.files, found.at.name, work)]
    if found.draft is not None and found.draft_at is not None:
        sources.append(source_of("draft", found.draft_at.path, found.draft.files, found.draft_at.name, work))
    return tuple(sources)


def _costs(found: _Sources) -> Iterator[str]:
    """What quantising cost, as it was measured."""
    for part, errors in (("target", found.target_errors), ("draft", found.draft_errors)):
        if errors.sums:
            yield f"{len(errors.sums)} matrices of the {part} were quantised: {errors}"


def _check_settings(chain: int, max_chain: int, max_prefill: int, max_seq_len: int | None) -> None:
    if not 0 <= max_chain <= MAX_CHAIN:
        raise SettingError(f"A maximum chain of {max_chain} is not possible.", f"Use 0 to {MAX_CHAIN}.")
    if not 0 <= chain <= max_chain:
        raise SettingError(f"A chain of {chain} is not possible.", f"Use 0 (plain decoding) to {max_chain}.")
    if max_prefill < 1:
        raise SettingError(f"A prefill chunk of {max_prefill} tokens is not possible.", "Use 1 or more.")
    if max_seq_len is not None and max_seq_len < 2:
        raise SettingError(f"A context of {max_seq_len} positions is not possible.", "Use 2 or more.")


def _check_output(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise BundleError(str(path), "is a file", "Give a new directory.")
    if path.is_dir() and any(path.iterdir()) and not (path / MANIFEST_FILE).is_file():
        raise BundleError(str(path), "is neither empty nor a bundle", "Give a new directory.")
