"""Making a bundle: a target and a draft from their own layouts into one directory.

Written beside the destination and renamed at the end, so that an interrupted export leaves no half bundle.
Knows no layout but the bundle's; checkpoint.py reads the sources.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eagle3chat import __version__
from eagle3chat.engine.bundle import (
    CHAT_TEMPLATE,
    CONFIG,
    DRAFT,
    MAX_CHAIN,
    TARGET,
    TENSORS,
    TOKENIZER,
    TOKENIZER_CONFIG,
    open_bundle,
)
from eagle3chat.engine.checkpoint import DraftSource, TargetSource, open_draft, open_target
from eagle3chat.engine.config import Manifest, Source
from eagle3chat.engine.draft_embedding import rows_of
from eagle3chat.engine.errors import BundleError, CheckpointError, SettingError
from eagle3chat.engine.manifest import MANIFEST_FILE, write_manifest
from eagle3chat.engine.tensor_file import ITEM_BYTES, LazyTensor, write_tensors

Progress = Callable[[str, float | None], None]
DEFAULT_CHAIN = 3
DEFAULT_MAX_CHAIN = 8
DEFAULT_MAX_PREFILL = 512
BUILT_IN = {"<|im_start|>": "chatml", "<|start_header_id|>": "llama3", "<|turn>": "gemma4"}
"""Control token that gives a family's template away."""


def export_bundle(
    target_path: Path,
    draft_path: Path | None,
    output_dir: Path,
    *,
    template: str | None = None,
    chain: int = DEFAULT_CHAIN,
    max_chain: int = DEFAULT_MAX_CHAIN,
    max_prefill: int = DEFAULT_MAX_PREFILL,
    max_seq_len: int | None = None,
    taps: Sequence[int] | None = None,
    own_embedding: bool | None = None,
    name: str | None = None,
    progress: Progress | None = None,
    remark: Callable[[str], None] | None = None,
    command: str = "",
) -> Path:
    """Make a bundle in `output_dir`, replacing one that is there.

    Args:
        target_path: A GGUF file or a Hugging Face directory.
        draft_path: The directory of an EAGLE-3 draft; None: the target alone.
        output_dir: New, empty, or a bundle.
        template: A built-in name, or a file with a Jinja template; None: the model's own, else by its tokens.
        chain: The default chain, 0..max_chain; 0 without a draft.
        max_prefill: Tokens of a prefill chunk.
        max_seq_len: The longest context that is offered, in positions; None: what the target was made for.
        taps, own_embedding: As for `open_draft`.
        name: As shown; None: from the target's file.
        progress: Called with a stage and the fraction of the whole, 0..1.
        remark: Called with what the user should know of the draft: its taps, and what was decided for it.
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
    target = open_target(target_path)
    draft = None
    if draft_path is not None:
        draft = open_draft(draft_path, target.config, taps, own_embedding, rows_of(target))
        for text in draft.remarks:
            say(text)
    template_name, template_text = _template(template, target)
    with _beside(output_dir) as partial:
        _write_parts(partial, target, draft, template_text, report)
        report("checking the bundle", 0.9)
        manifest = Manifest(
            name=name or target.name,
            draft_name="" if draft is None else draft.name,
            family=target.config.family,
            target=target.config,
            draft=None if draft is None else draft.config,
            quantization=target.quantization,
            default_chain=0 if draft is None else chain,
            max_chain=0 if draft is None else max_chain,
            min_prefill=1,
            max_prefill=max_prefill,
            max_seq_len=min(max_seq_len or target.config.max_position, target.config.max_position),
            template=template_name,
            bos_id=target.bos_id,
            stop_ids=target.stop_ids,
            tokenizer_sha256=hashlib.sha256(target.tokenizer).hexdigest(),
            sources=sources(target_path, target, draft_path, draft),
            command=command,
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            version=__version__,
        )
        write_manifest(partial, manifest)
        open_bundle(partial)
    report("done", 1.0)
    return output_dir


def sources(
    target_path: Path, target: TargetSource, draft_path: Path | None, draft: DraftSource | None
) -> tuple[Source, ...]:
    """Names, sizes and hashes of what a bundle was made from."""
    found = [source_of("target", target_path, target.files)]
    if draft_path is not None and draft is not None:
        found.append(source_of("draft", draft_path, draft.files))
    return tuple(found)


def source_of(role: str, path: Path, files: Sequence[Path]) -> Source:
    """One source: a file by its contents, a directory by its files' names, sizes and hashes in order."""
    sizes = [file.stat().st_size for file in files]
    hashes = [file_sha256(file) for file in files]
    if not path.is_dir():
        return Source(role, path.name, sizes[0], hashes[0])
    whole = hashlib.sha256()
    for file, size, digest in sorted(zip(files, sizes, hashes, strict=True)):
        whole.update(f"{file.name}\0{size}\0{digest}\n".encode())
    return Source(role, path.resolve().name, sum(sizes), whole.hexdigest())


def file_sha256(path: Path) -> str:
    """Of a file's contents, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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


def _template(template: str | None, target: TargetSource) -> tuple[str, str]:
    """The template's name for the manifest, and the text of chat_template.jinja; empty: no such file."""
    if template is None and target.chat_template:
        return "model", target.chat_template
    if template is None:
        tokens = {token["content"] for token in json.loads(target.tokenizer).get("added_tokens") or []}
        for token, name in BUILT_IN.items():
            if token in tokens:
                return name, ""
        raise CheckpointError(f"{target.name} has no chat template.", "Name one with --template.")
    if template in BUILT_IN.values():
        return template, target.chat_template
    if template == "model" and target.chat_template:
        return "model", target.chat_template
    file = Path(template).expanduser()
    if not file.is_file():
        known = ", ".join(BUILT_IN.values())
        raise SettingError(f"The chat template {template!r} is not known.", f"Known: {known}, model, or a file.")
    return "model", file.read_text(encoding="utf-8")


@contextmanager
def _beside(output: Path) -> Iterator[Path]:
    """A new directory beside `output`, which takes its place when the block ends well and goes when it does not."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{output.name}.partial-", dir=output.parent))
        try:
            made = work / "bundle"
            made.mkdir()
            yield made
            _put(made, output)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        what = f"cannot be written ({error.strerror or error})"
        raise BundleError(str(output), what, "Free some space, or choose another directory.") from error


def _put(made: Path, output: Path) -> None:
    """Rename; what was there steps aside first and comes back if the new one cannot take its place."""
    old = made.with_name("old")
    if output.exists():
        output.rename(old)
    try:
        made.rename(output)
    except OSError:
        if old.exists():
            old.rename(output)
        raise


def _write_parts(
    path: Path, target: TargetSource, draft: DraftSource | None, template_text: str, report: Progress
) -> None:
    parts: list[tuple[str, Sequence[LazyTensor], dict[str, Any]]] = [(TARGET, target.tensors, dict(target.config_json))]
    if draft is not None:
        parts.append((DRAFT, draft.tensors, dataclasses.asdict(draft.config)))
    total = sum(tensor.size for _, tensors, _ in parts for tensor in tensors)
    done = 0

    def written(size: int) -> None:
        nonlocal done
        done += size
        report("writing the bundle", 0.1 + 0.8 * done / total)

    for part, tensors, config in parts:
        (path / part).mkdir()
        # The widest types first: every tensor then begins at a multiple of its item's size.
        ordered = sorted(tensors, key=lambda tensor: -ITEM_BYTES[tensor.dtype])
        write_tensors(path / part / TENSORS, ordered, written=written)
        _write_json(path / part / CONFIG, config)
    (path / TOKENIZER).write_bytes(target.tokenizer)
    _write_json(path / TOKENIZER_CONFIG, dict(target.tokenizer_config))
    if template_text:
        (path / CHAT_TEMPLATE).write_text(template_text, encoding="utf-8")


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
