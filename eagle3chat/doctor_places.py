"""What `doctor` says about directories: where things are kept, whether they can be written, and who can read them."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from eagle3chat.doctor import Finding

OTHERS = 0o077
FEW_BYTES = 100 << 20


def places() -> Iterator[Finding]:
    """Each place, then the files in them that people have things in."""
    from eagle3chat.engine.crash import reports_directory
    from eagle3chat.engine.default_pair import user_bundles
    from eagle3chat.engine.worker import default_log_path
    from eagle3chat.settings import settings_path
    from eagle3chat.transcript_list import default_directory
    from eagle3chat.ui.history import default_history_path

    yield place("transcripts", default_directory(), private=True)
    yield place("history", default_history_path().parent, private=True)
    yield place("log", default_log_path().parent, private=True)
    yield place("crash reports", reports_directory(), private=True)
    yield place("bundles", user_bundles(), private=False)
    yield place("settings", settings_path().parent, private=False)


def place(name: str, path: Path, *, private: bool) -> Finding:
    """One directory, there or not."""
    existing = next((p for p in (path, *path.parents) if p.exists()), Path("/"))
    shown = short(path)
    if not existing.is_dir():
        return Finding("place", name, shown, "bad", f"{short(existing)} is no directory")
    if not os.access(existing, os.W_OK | os.X_OK):
        return Finding(
            "place", name, shown, "bad", f"{short(existing)} cannot be written; set XDG_DATA_HOME and others"
        )
    free = shutil.disk_usage(existing).free
    if free < FEW_BYTES:
        return Finding("place", name, shown, "bad", f"only {free >> 20} MiB are free there")
    if existing != path:
        return Finding("place", name, f"{shown} (not there yet)")
    open_to = stat.S_IMODE(path.stat().st_mode) & OTHERS
    if private and open_to:
        return Finding("place", name, shown, "bad", f"others may look into it; chmod 700 '{shown}'")
    return Finding("place", name, shown)


def short(path: Path) -> str:
    """A path with the home directory as a tilde."""
    text, home = str(path), str(Path.home())
    return "~" + text[len(home) :] if text == home or text.startswith(home + os.sep) else text
