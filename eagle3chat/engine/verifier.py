"""The target that a draft says it was trained for, against the one that it is paired with.

A draft's directory may name its verifier and may hold the tokenizer that it was trained with. Widths and vocabulary
sizes are draft_source.py's to check; equal sizes do not make equal tokens. Knows no tensors.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3chat.engine.bundle import CONFIG, TOKENIZER
from eagle3chat.engine.errors import CheckpointError
from eagle3chat.engine.hf_values import read_json


@dataclass(frozen=True, slots=True)
class Verifier:
    """What a draft declares."""

    name: str  # empty: nothing
    tokenizer_sha256: str  # of the tokenizer beside the draft; empty: there is none


def read_verifier(path: Path) -> Verifier:
    """What the draft in a directory declares.

    Raises:
        BundleError: Its config cannot be read.
    """
    config = read_json(path / CONFIG)
    declared = (config.get("speculators_config") or {}).get("verifier") or {}
    name = declared.get("name_or_path") if isinstance(declared, dict) else None
    name = name or config.get("target_model_name_or_path") or ""
    file = path / TOKENIZER
    digest = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
    return Verifier(name if isinstance(name, str) else "", digest)


def check_verifier(path: Path, verifier: Verifier, tokenizer: bytes) -> None:
    """Compare the tokenizer beside a draft with the target's: the same file, or at least the same tokens.

    Args:
        tokenizer: The target's tokenizer.json.

    Raises:
        CheckpointError: A token has another id.
    """
    if not verifier.tokenizer_sha256 or verifier.tokenizer_sha256 == hashlib.sha256(tokenizer).hexdigest():
        return
    theirs, ours = _tokens(read_json(path / TOKENIZER)), _tokens(json.loads(tokenizer))
    other = next((token for token, place in theirs.items() if ours.get(token) != place), None)
    if other is not None:
        has = f"is {ours[other]}" if other in ours else "does not exist"
        what = f"the draft was trained with another tokenizer: its token {other!r} is {theirs[other]} and here {has}"
        raise CheckpointError(f"{path.name}: {what}.", "Use a draft that was trained for this target.")


def _tokens(values: Mapping[str, Any]) -> dict[str, int]:
    """Id by token; empty where the model has no plain vocabulary."""
    vocab = (values.get("model") or {}).get("vocab")
    if isinstance(vocab, list):
        vocab = {entry[0]: place for place, entry in enumerate(vocab) if isinstance(entry, list) and entry}
    tokens = dict(vocab) if isinstance(vocab, dict) else {}
    return tokens | {token["content"]: token["id"] for token in values.get("added_tokens") or []}
