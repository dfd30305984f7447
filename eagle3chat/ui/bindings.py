"""The keys of the chat, each with an id that a key map can name. Knows no action's code."""

from __future__ import annotations

from textual.binding import Binding

CHAT_KEYS = (
    Binding("escape", "stop", "Stop", id="chat.stop", priority=True),
    Binding("ctrl+c", "interrupt", "Copy, stop, clear, leave", id="chat.interrupt", priority=True),
    Binding("ctrl+q", "quit", "Leave", id="chat.quit", priority=True),
    Binding("f1", "help", "Help", id="chat.help", priority=True),
    Binding("f3", "marks", "Marks", id="chat.marks", priority=True),
    Binding("f4", "inspect", "Inspect rounds", id="chat.inspect", priority=True),
    Binding("f5", "restart", "Restart the worker", id="chat.restart", priority=True),
    Binding("f7", "auto", "Chain that finds its length", id="chat.chain.auto", priority=True),
    Binding("f8", "chain(-1)", "Shorter chain", id="chat.chain.shorter", priority=True),
    Binding("f9", "chain(1)", "Longer chain", id="chat.chain.longer", priority=True),
    Binding("ctrl+g", "temperature(-1)", "Cooler", id="chat.temperature.down", priority=True),
    Binding("ctrl+t", "temperature(1)", "Warmer", id="chat.temperature.up", priority=True),
    Binding("pageup", "page(-1)", "Page up", id="chat.page.up", priority=True),
    Binding("pagedown", "page(1)", "Page down", id="chat.page.down", priority=True),
    Binding("ctrl+home", "edge(-1)", "First turn", id="chat.start", priority=True),
    Binding("ctrl+end", "edge(1)", "Last turn", id="chat.end", priority=True),
)
