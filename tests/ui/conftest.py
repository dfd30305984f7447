"""Property tests draw the same cases every time, and a busy machine does not fail them."""

import pytest
from hypothesis import settings

from eagle3chat.ui import clipboard

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def nobodys_clipboard(monkeypatch):
    """Copying asks the terminal, never the clipboard of the machine that runs the tests."""
    monkeypatch.setattr(clipboard, "tools", lambda environ: [])
