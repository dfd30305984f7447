"""Where a copy goes, and what is said of it."""

import pytest

from eagle3chat.ui import clipboard
from eagle3chat.ui.clipboard import copy

TOOLS = clipboard.tools  # before the fixture takes it away


@pytest.fixture(autouse=True)
def all_installed(monkeypatch):
    monkeypatch.setattr(clipboard.shutil, "which", lambda name: f"/bin/{name}")


@pytest.mark.parametrize(
    ("environ", "platform", "first"),
    [
        ({"WAYLAND_DISPLAY": "wayland-0", "DISPLAY": ":0"}, "linux", ["wl-copy"]),
        ({"DISPLAY": ":0"}, "linux", ["xclip", "-selection", "clipboard"]),
        ({}, "darwin", ["pbcopy"]),
        ({"TMUX": "x"}, "linux", ["tmux", "load-buffer", "-w", "-"]),
        ({"SSH_TTY": "/dev/pts/1", "DISPLAY": ":10", "TMUX": "x"}, "darwin", ["tmux", "load-buffer", "-w", "-"]),
    ],
)
def test_the_nearest_clipboard_first(environ, platform, first):
    assert TOOLS(environ, platform)[0][1] == first


def test_over_ssh_the_terminal_is_asked():
    assert TOOLS({"SSH_CONNECTION": "a b", "DISPLAY": ":10"}, "linux") == []
    asked = []
    assert copy("text", {}, asked.append) == "sent to the terminal's clipboard"
    assert asked == ["text"]


def test_only_what_worked_is_called_a_copy(monkeypatch, tmp_path):
    got = tmp_path / "got"
    works = ("the clipboard", ["sh", "-c", f"cat > {got}"])
    monkeypatch.setattr(clipboard, "tools", lambda environ: [("x", ["sh", "-c", "exit 1"]), ("x", ["no-such"]), works])
    asked = []
    assert copy("tëxt\n", {}, asked.append) == "copied to the clipboard"
    assert (got.read_text(), asked) == ("tëxt\n", [])
