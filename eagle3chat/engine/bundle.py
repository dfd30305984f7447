"""A bundle: the directory that holds a target, its draft and their tokenizer, checked at the door.

    bundle.json                                           everything that would otherwise be guessed
    target/config.json  target/*.safetensors              Hugging Face names; dense or MLX affine
    draft/config.json   draft/model.safetensors           canonical names (layout.py); absent without a draft
    tokenizer.json  tokenizer_config.json  chat_template.jinja

Only headers and small files are read, so that a bundle of any size opens in milliseconds. Knows no tensor
library, and no other layout (checkpoint.py does).
"""

from __future__ import annotations

import array
import hashlib
import itertools
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3chat.engine.config import AttentionKind, DraftConfig, Manifest, Rope, TargetConfig
from eagle3chat.engine.errors import BundleError
from eagle3chat.engine.layout import TARGET_IDS, problem_in_draft, problem_in_target
from eagle3chat.engine.manifest import AGAIN, MANIFEST_FILE, read_manifest, write_manifest
from eagle3chat.engine.safe_json import brief, parse_json
from eagle3chat.engine.small_files import read_small
from eagle3chat.engine.tensor_file import DAMAGED, TensorFile, TensorInfo, read_header

__all__ = ["Bundle", "open_bundle", "read_manifest", "tensor_files", "write_manifest"]

TARGET, DRAFT = "target", "draft"
TENSORS = "model.safetensors"
INDEX = "model.safetensors.index.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
CONFIG = "config.json"
TOKENIZER_BYTES = 256 << 20  # at most; those of large vocabularies have 40 MiB
INDEX_BYTES = 64 << 20
MAX_CHAIN = 64  # longer chains are a mistake, not a setting


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle that passed the door."""

    path: Path
    manifest: Manifest

    @property
    def target_files(self) -> tuple[Path, ...]:
        """The target's safetensors files, in name order."""
        return tensor_files(self.path / TARGET)

    @property
    def draft_file(self) -> Path | None:
        """The draft's safetensors file; None without a draft."""
        return None if self.manifest.draft is None else self.path / DRAFT / TENSORS

    @property
    def tokenizer_file(self) -> Path:
        """tokenizer.json."""
        return self.path / TOKENIZER

    @property
    def tokenizer_config_file(self) -> Path:
        """tokenizer_config.json: bos_token, eos_token, unk_token, pad_token, add_bos_token."""
        return self.path / TOKENIZER_CONFIG

    @property
    def template_file(self) -> Path | None:
        """The model's own chat template; None when it has none."""
        file = self.path / CHAT_TEMPLATE
        return file if file.is_file() else None


def open_bundle(path: Path) -> Bundle:
    """Open a bundle and check it: files, headers, shapes, types, vocabularies, taps, chains.

    Raises:
        BundleError: Something is missing, damaged or inconsistent; names the file, what and the fix.
    """
    path = Path(os.path.expanduser(path))
    if not path.is_dir():
        what = "is not a directory" if path.exists() else "does not exist"
        raise BundleError(str(path), what, "Give a directory made by `eagle3chat export`.")
    manifest = read_manifest(path)
    _check_manifest(path / MANIFEST_FILE, manifest)
    _check_tokenizer(path, manifest)
    _check_target(path / TARGET, manifest)
    if manifest.draft is not None:
        _check_draft(path / DRAFT, manifest, manifest.draft)
    return Bundle(path, manifest)


def tensor_files(directory: Path, single: str = TENSORS) -> tuple[Path, ...]:
    """The files with the weights of a directory: those that its index names, else the one that is called `single`.

    Raises:
        BundleError: The index is malformed or names a file outside the directory; a file is missing.
    """
    index = directory / f"{single}.index.json"
    names = [single]
    if index.is_file():
        given = index_map(index).values()
        odd = [name for name in given if not isinstance(name, str)]
        if odd:
            raise BundleError(str(index), f"names {brief(odd[0])}, which is not a file of its directory", AGAIN)
        names = sorted(set(given))
    for name in names:
        if Path(name).name != name or name in ("", ".", ".."):
            raise BundleError(str(index), f"names {brief(name)}, which is not a file of its directory", AGAIN)
    files = tuple(directory / name for name in names)
    for file in files:
        if not file.is_file():
            raise BundleError(str(file), "is missing", DAMAGED)
    return files


def read_tensors(directory: Path) -> dict[str, TensorInfo]:
    """The headers of a directory's safetensors files as one: name to place.

    Raises:
        BundleError: A file is missing or damaged, or two files hold one name.
    """
    tensors: dict[str, TensorInfo] = {}
    for file in tensor_files(directory):
        header: TensorFile = read_header(file)
        for name, info in header.tensors.items():
            if name in tensors:
                raise BundleError(str(file), f"the tensor {name} is also in {tensors[name].path.name}", DAMAGED)
            tensors[name] = info
    return tensors


def index_map(path: Path) -> dict[str, Any]:
    """File by tensor's name, from the index of a directory with several files.

    Raises:
        BundleError: It is not an index.
    """
    try:
        names = parse_json(read_small(path, INDEX_BYTES))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BundleError(str(path), "cannot be read as an index of tensor files", DAMAGED) from error
    if not isinstance(names, dict) or not names:
        raise BundleError(str(path), "cannot be read as an index of tensor files", DAMAGED)
    return names


def _check_manifest(file: Path, manifest: Manifest) -> None:
    problem = _problem_in_numbers(manifest) or _problem_in_config("target", manifest.target)
    if manifest.draft is not None:
        problem = problem or _problem_in_config("draft", manifest.draft) or _problem_in_pair(manifest, manifest.draft)
    if problem:
        raise BundleError(str(file), problem, AGAIN)


def _problem_in_numbers(manifest: Manifest) -> str:
    top = MAX_CHAIN if manifest.draft is not None else 0
    if not 0 <= manifest.default_chain <= manifest.max_chain <= top:
        return (
            f"default_chain {manifest.default_chain} and max_chain {manifest.max_chain} "
            f"are not in the order 0 <= default <= max <= {top}"
        )
    if not 1 <= manifest.min_prefill <= manifest.max_prefill:
        return f"min_prefill {manifest.min_prefill} and max_prefill {manifest.max_prefill} are not 1 <= min <= max"
    if manifest.max_seq_len < 2:
        return f"max_seq_len is {manifest.max_seq_len}; a context has at least 2 positions"
    if not manifest.template or Path(manifest.template).name != manifest.template:
        return f"the template {manifest.template!r} is not a plain name"
    vocab = manifest.target.vocab_size
    if not -1 <= manifest.bos_id < vocab:
        return f"bos_id {manifest.bos_id} is outside the vocabulary of {vocab}"
    outside = [i for i in manifest.stop_ids if not 0 <= i < vocab]
    return f"the stop id {outside[0]} is outside the vocabulary of {vocab}" if outside else ""


def _problem_in_config(part: str, config: TargetConfig | DraftConfig) -> str:
    names = ["hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim", "rms_eps"]
    names += ["num_layers", "vocab_size" if isinstance(config, TargetConfig) else "draft_vocab_size"]
    for name in names:
        if not getattr(config, name) > 0:
            return f"{part}.{name} is {getattr(config, name)}, not above 0"
    problem = _problem_in_heads(part, config.num_heads, config) or _problem_in_rope(part, config.rope)
    return problem or (_problem_in_layers(config) if isinstance(config, TargetConfig) else "")


def _problem_in_heads(part: str, heads: int, kind: TargetConfig | DraftConfig | AttentionKind) -> str:
    if kind.num_kv_heads < 1 or heads % kind.num_kv_heads:
        return f"{part}.num_heads {heads} is not a multiple of num_kv_heads {kind.num_kv_heads}"
    if kind.head_dim < 2 or kind.head_dim % 2:
        return f"{part}.head_dim {kind.head_dim} is odd, which rotary positions cannot turn"
    return ""


def _problem_in_layers(config: TargetConfig) -> str:
    """Of layers that differ from each other: their types, their window, whose keys and values they read."""
    types, own = config.layer_types, config.num_layers - config.shared_kv_layers
    if types and len(types) != config.num_layers:
        return f"target.layer_types names {len(types)} layers of {config.num_layers}"
    if ("sliding" in types) != (config.sliding is not None):
        return "target.sliding does not fit target.layer_types"
    if not 0 < own <= config.num_layers or set(types[:own]) != set(types):
        return f"target.shared_kv_layers {config.shared_kv_layers} leaves layers without keys and values to read"
    if config.layer_input_size < 0 or (config.layer_input_size and config.layer_input_vocab < config.vocab_size):
        return f"target.layer_input_vocab {config.layer_input_vocab} is below the vocabulary of {config.vocab_size}"
    if config.sliding is None:
        return ""
    if config.sliding.window < 1:
        return f"target.sliding.window is {config.sliding.window}, not above 0"
    part = "target.sliding"
    return _problem_in_heads(part, config.num_heads, config.sliding) or _problem_in_rope(part, config.sliding.rope)


def _problem_in_rope(part: str, rope: Rope) -> str:
    if not (rope.theta > 0 and rope.factor > 0):
        return f"{part}.rope has theta {rope.theta} and factor {rope.factor}, which must be above 0"
    ordered = 0 < rope.low_freq_factor < rope.high_freq_factor and rope.original_max_position > 0
    if rope.kind == "llama3" and not ordered:
        return f"{part}.rope lacks the numbers that the kind llama3 needs"
    if rope.kind == "yarn" and not (0 < rope.beta_slow < rope.beta_fast and rope.original_max_position > 0):
        return f"{part}.rope lacks the numbers that the kind yarn needs"
    return "" if 0 < rope.partial <= 1 else f"{part}.rope.partial is {rope.partial}, not within 0..1"


def _problem_in_pair(manifest: Manifest, draft: DraftConfig) -> str:
    target = manifest.target
    if draft.target_hidden_size != target.hidden_size:
        return f"the draft is for a target of width {draft.target_hidden_size}, the target has {target.hidden_size}"
    problem = problem_in_taps(draft.taps, target.num_layers)
    if problem:
        return problem
    if draft.draft_vocab_size > target.vocab_size:
        return f"the draft's vocabulary of {draft.draft_vocab_size} is larger than the target's of {target.vocab_size}"
    if not draft.own_embedding and draft.hidden_size != target.hidden_size:
        return f"the draft of width {draft.hidden_size} cannot use the embedding of a target of {target.hidden_size}"
    same = draft.draft_vocab_size == target.vocab_size and draft.hidden_size == target.hidden_size
    return "" if draft.own_head or same else "the draft has no head and cannot use the target's"


def problem_in_taps(taps: tuple[int, ...], num_layers: int) -> str:
    """What is wrong with tap boundaries of a target of `num_layers` layers, as a clause; empty: nothing."""
    if not taps:
        return "the draft has no taps"
    for tap in taps:
        if not 0 <= tap <= num_layers:
            return f"the tap {tap} lies outside the target's {num_layers} layers (0..{num_layers})"
    if any(b <= a for a, b in itertools.pairwise(taps)):
        return f"the taps {list(taps)} are not in ascending order"
    return ""


def _check_tokenizer(path: Path, manifest: Manifest) -> None:
    file = path / TOKENIZER
    try:
        data = read_small(file, TOKENIZER_BYTES)
    except OSError as error:
        raise BundleError(str(file), f"cannot be read ({error.strerror or error})", AGAIN) from error
    if hashlib.sha256(data).hexdigest() != manifest.tokenizer_sha256:
        raise BundleError(str(file), "is not the tokenizer that this bundle was made with", AGAIN)
    size = tokenizer_size(file, data)
    if size > manifest.target.vocab_size:
        what = f"has {size} tokens, the target knows {manifest.target.vocab_size}"
        raise BundleError(str(file), what, "Use the tokenizer of this target.")
    if manifest.template == "model" and not (path / CHAT_TEMPLATE).is_file():
        raise BundleError(str(path / CHAT_TEMPLATE), "is missing, and the bundle's template is its own", AGAIN)


def tokenizer_size(file: Path, data: bytes) -> int:
    """The highest id of a tokenizer.json, plus 1.

    Raises:
        BundleError: `data` is not a tokenizer.json; `file` is the name for the message.
    """
    try:
        tokenizer = parse_json(data)
        added = tokenizer.get("added_tokens") or []
        vocab = tokenizer["model"]["vocab"]
        ids = vocab.values() if isinstance(vocab, dict) else range(len(vocab))
        numbers: list[int] = [-1, *ids, *(token["id"] for token in added)]
        if not all(type(number) is int and -1 <= number < 1 << 31 for number in numbers):
            raise ValueError("an id that is none")
        return 1 + max(numbers)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BundleError(str(file), "is not a tokenizer.json with a vocabulary", AGAIN) from error


def _check_target(directory: Path, manifest: Manifest) -> None:
    problem = problem_in_target(read_tensors(directory), manifest.target, manifest.quantization)
    if problem:
        raise BundleError(str(directory), problem, AGAIN)


def _check_draft(directory: Path, manifest: Manifest, draft: DraftConfig) -> None:
    file = directory / TENSORS
    tensors = read_header(file).tensors
    vocab = manifest.target.vocab_size
    problem = problem_in_draft(tensors, draft, vocab, manifest.draft_quantization)
    if not problem:
        ids = array.array("q", tensors[TARGET_IDS].read())
        if sys.byteorder == "big":
            ids.byteswap()
        problem = problem_in_target_ids(ids, vocab)
    if problem:
        raise BundleError(str(file), problem, AGAIN)


def problem_in_target_ids(ids: array.array[int], vocab_size: int) -> str:
    """What is wrong with a draft's target ids [Vd], as a clause; empty: nothing."""
    last = -1
    for place, target_id in enumerate(ids):
        if not 0 <= target_id < vocab_size:
            return f"draft token {place} is target id {target_id}, outside the vocabulary of {vocab_size}"
        if target_id <= last:
            return f"the target ids of the draft are not ascending at draft token {place}"
        last = target_id
    return ""
