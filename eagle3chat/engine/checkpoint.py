"""Foreign checkpoints: a target or a draft in somebody else's layout, as what goes into a bundle.

    open_target   a GGUF file or a Hugging Face directory, dense or quantised
    open_draft    an EAGLE-3 draft in any of its public layouts

Weights stay where they are until a `LazyTensor` is read. The readers of the formats are in their own files
(gguf_source, hf_source, draft_source) and are imported when needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3chat.engine.config import DraftConfig, Quantization, TargetConfig
from eagle3chat.engine.errors import CheckpointError
from eagle3chat.engine.tensor_file import LazyTensor

if TYPE_CHECKING:
    from eagle3chat.engine.draft_embedding import TargetRows

END_TOKENS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<turn|>",
    "<eos>",
    "</s>",
)
"""Control tokens that end a turn or a text in the families that are known; they stop a reply wherever they exist."""


@dataclass(frozen=True, slots=True)
class TargetSource:
    """A target, ready to be written into a bundle."""

    name: str
    config: TargetConfig
    quantization: Quantization | None
    tensors: tuple[LazyTensor, ...]  # with the names and forms of layout.py
    config_json: Mapping[str, Any]  # for target/config.json
    tokenizer: bytes  # tokenizer.json
    tokenizer_config: Mapping[str, Any]  # tokenizer_config.json, without the chat template
    chat_template: str  # Jinja; empty: none
    bos_id: int  # -1: none is prepended
    stop_ids: tuple[int, ...]
    files: tuple[Path, ...]  # what it was read from
    linkable: tuple[Path, ...] = ()  # the files that hold these tensors and no others, under these names
    inexact: Mapping[str, str] = field(default_factory=dict)  # modules that stand there dense for want of a form: why


@dataclass(frozen=True, slots=True)
class DraftSource:
    """A draft in canonical form, ready to be written into a bundle."""

    name: str
    config: DraftConfig
    tensors: tuple[LazyTensor, ...]
    files: tuple[Path, ...]
    remarks: tuple[str, ...] = ()  # what the user should see: the taps, and what was decided for them
    quantization: Quantization | None = None  # of its matrices that have scales


def open_target(path: Path) -> TargetSource:
    """Open a GGUF file or a Hugging Face directory.

    Raises:
        CheckpointError: The format, the architecture or a tensor's type is not known.
        BundleError: A file is missing or damaged.
    """
    if path.is_dir():
        from eagle3chat.engine.hf_source import open_hf

        return open_hf(path)
    if not path.exists():
        raise CheckpointError(f"{path} does not exist.", "Give a GGUF file or a Hugging Face directory.")
    if path.suffix == ".gguf":
        from eagle3chat.engine.gguf_source import open_gguf

        return open_gguf(path)
    raise CheckpointError(
        f"{path} is not a checkpoint of a known kind.", "Give a .gguf file or a directory with config.json."
    )


def open_draft(
    path: Path,
    target: TargetConfig,
    taps: Sequence[int] | None = None,
    own_embedding: bool | None = None,
    rows: TargetRows | None = None,
    share_embedding: bool = False,
) -> DraftSource:
    """Open an EAGLE-3 draft for `target`.

    Args:
        path: Its directory.
        target: The target that it will draft for.
        taps: Boundaries (0..layers) instead of those that the draft's config names.
        own_embedding: Keep the draft's own embedding, or use the target's; None: as the draft was trained.
        rows: The target's embedding, to compare the draft's copy with; None: it is not compared.
        share_embedding: Use the target's, and refuse a draft whose own differs from it.

    Raises:
        CheckpointError: The layout is not known, or does not fit the target.
        BundleError: A file is missing or damaged.
    """
    from eagle3chat.engine.draft_source import open_eagle3

    return open_eagle3(path, target, taps, own_embedding, rows, share_embedding)


def stop_ids(declared: Iterable[int], controls: Mapping[str, int]) -> tuple[int, ...]:
    """Ids that end a reply: the declared ones, then those of `END_TOKENS` that exist as control tokens."""
    ids = [*declared, *(controls[token] for token in END_TOKENS if token in controls)]
    return tuple(dict.fromkeys(ids))
