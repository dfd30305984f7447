"""The README says what is there: its file tree is the one that scripts/tree.py writes, its pictures exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
def test_the_file_tree_is_true() -> None:
    done = subprocess.run([sys.executable, "scripts/tree.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_pictures_exist() -> None:
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(pictures) >= 2
    assert all((ROOT / picture).is_file() for picture in pictures)
