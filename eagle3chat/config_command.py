"""`eagle3chat config`: where the settings file is, and one with every key in it as a comment."""

from __future__ import annotations

import argparse
import os

from eagle3chat.engine.errors import SettingError
from eagle3chat.engine.private_files import private_directory
from eagle3chat.key_map import checked_keys
from eagle3chat.settings import load_settings, settings_path
from eagle3chat.settings_template import template


def config(args: argparse.Namespace) -> int:
    """Print, or write with --init; the exit code.

    Raises:
        SettingError: There is a file already, or it cannot be written, or the one that there is has a mistake.
    """
    path = settings_path()
    if args.init:
        try:
            private_directory(path.parent)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                file.write(template())
        except FileExistsError:
            raise SettingError(f"There is a settings file already: {path}.", "Edit it, or move it away.") from None
        except OSError as error:
            raise SettingError(f"{path} cannot be written: {(error.strerror or str(error)).lower()}.") from error
        print(path)
        return 0
    there = path.exists()
    print(f"# {path}" if there else f"# {path} (not there yet: eagle3chat config --init writes it)")
    print()
    print(template(), end="")
    if there:
        checked_keys(dict(load_settings().keys))  # says what is wrong with it
    return 0
