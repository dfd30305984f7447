"""Checkpoints by their id on the Hugging Face hub, through huggingface_hub: its downloads, its bars, its cache.

    org/name              the files of a checkpoint
    org/name/file.gguf    one GGUF file of a repository

A path that exists is never an id. Knows no format.
"""

from __future__ import annotations

import importlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3chat.engine.errors import CheckpointError

ID = re.compile(r"[\w.-]+/[\w.-]+(/[\w./-]+\.gguf)?", re.ASCII)
WANTED = ["*.safetensors", "*.json", "*.jinja"]
UNWANTED = ["*/*", "consolidated*"]  # the latter: the same weights once more, in another layout
PICKLES = ["pytorch_model*.bin"]  # only where there is nothing better
INSTALL = "Install it with: pip install 'eagle3chat[hub]'"


@dataclass(frozen=True, slots=True)
class Located:
    """A checkpoint on this machine."""

    path: Path
    name: str  # as it is called where it is from; empty: as the path is


def located(place: str) -> Located:
    """A path as it is, or the checkpoint of a hub id, downloaded where it is not in the cache.

    Raises:
        CheckpointError: It cannot be downloaded: not installed, offline, not there, not allowed.
    """
    path = Path(os.path.expanduser(place))
    if path.exists() or ID.fullmatch(place) is None or place.startswith("."):
        return Located(path, "")
    owner, name, *rest = place.split("/")
    try:
        hub = importlib.import_module("huggingface_hub")
        errors = importlib.import_module("huggingface_hub.errors")
    except ImportError as error:
        what = f"{place} is not a path here, and huggingface_hub, which could download it, is not installed"
        raise CheckpointError(f"{what}.", INSTALL) from error
    try:
        if rest:
            file = hub.hf_hub_download(f"{owner}/{name}", "/".join(rest))
            return Located(Path(file), Path(file).name)
        found = Path(hub.snapshot_download(f"{owner}/{name}", allow_patterns=WANTED, ignore_patterns=UNWANTED))
        if not any(found.glob("*.safetensors")):
            found = Path(hub.snapshot_download(f"{owner}/{name}", allow_patterns=WANTED + PICKLES))
    except (OSError, ValueError, RuntimeError, _network_error()) as error:
        raise CheckpointError(*_reason(place, error, errors)) from error
    if not any(file.suffix in (".safetensors", ".bin") for file in found.iterdir()):
        raise CheckpointError(f"{place} holds no weights that are known here.", f"Of GGUF, name a file: {place}/X.gguf")
    return Located(found, name)


def _network_error() -> type[Exception]:
    """What the library's transport raises; older versions raise an OSError."""
    try:
        error: type[Exception] = importlib.import_module("httpx").HTTPError
    except ImportError:
        return OSError
    return error


def _reason(place: str, error: Exception, errors: Any) -> tuple[str, str]:
    """What went wrong, and the fix."""
    if isinstance(error, errors.GatedRepoError):
        return f"{place} asks for its terms to be accepted on the hub.", "Accept them there and log in: hf auth login"
    if isinstance(error, errors.RepositoryNotFoundError | errors.RemoteEntryNotFoundError | errors.HFValidationError):
        return f"{place} is neither a path here nor on the hub, or it is private.", "Check the name, or: hf auth login"
    if isinstance(error, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled | ConnectionError):
        return f"{place} is not in the cache, and the hub cannot be reached.", "Give a directory, or go online."
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return f"{place} cannot be downloaded: {reason}.", "Try again: what is there already is kept."
