"""Every key of every screen: the id that the settings file names, the usual keys, what they do.

A place is what has keys at the same time: the chat, a screen above it, a box in one. Knows no toolkit and no action's
code.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KeyRow:
    """Keys that do one thing."""

    id: str
    keys: str  # the usual ones, with commas between them
    action: str  # as the screen names it
    does: str


@dataclass(frozen=True, slots=True)
class Place:
    """Rows that work at the same time."""

    title: str
    rows: tuple[KeyRow, ...]
    typed: str = ""  # what there is to write in ("prompt", "box"), which keeps its keys; empty: nothing


CHAT = Place(
    "the chat",
    (
        KeyRow("chat.stop", "escape", "stop", "stop the reply; what came stays"),
        KeyRow("chat.interrupt", "ctrl+c", "interrupt", "copy the selection, else stop, clear, leave (twice)"),
        KeyRow("chat.quit", "ctrl+q", "quit", "leave"),
        KeyRow("chat.help", "f1", "help", "keys, commands, and what the figures mean"),
        KeyRow("chat.commands", "ctrl+p", "command_palette", "all commands"),
        KeyRow("chat.sessions", "f2", "sessions", "saved conversations"),
        KeyRow("chat.marks", "f3", "marks", "marks in the reply: full, subtle, off"),
        KeyRow("chat.inspect", "f4", "inspect", "inspect the rounds of the replies"),
        KeyRow("chat.restart", "f5", "restart", "start the worker again; the conversation stays"),
        KeyRow("chat.copy", "f6", "copy", "copy the last reply as Markdown source"),
        KeyRow("chat.again", "ctrl+r", "again", "another reply to the last message"),
        KeyRow("chat.alternative", "ctrl+l", "alternative", "the next of the replies to the last message"),
        KeyRow("chat.new", "ctrl+n", "new", "a new conversation"),
        KeyRow("chat.editor", "ctrl+o", "editor", "write the draft in $EDITOR"),
        KeyRow("chat.top", "f12,alt+up", "top", "the beginning of the last reply"),
        KeyRow("chat.chain.auto", "f7", "auto", "chain that finds its own length, or stays at what it found"),
        KeyRow("chat.chain.shorter", "f8", "chain(-1)", "shorter chain; 0 is plain decoding"),
        KeyRow("chat.chain.longer", "f9", "chain(1)", "longer chain"),
        KeyRow("chat.temperature.down", "ctrl+g", "temperature(-1)", "temperature down by 0.1"),
        KeyRow("chat.temperature.up", "ctrl+t", "temperature(1)", "temperature up by 0.1"),
        KeyRow("chat.page.up", "pageup", "page(-1)", "a page up in the conversation"),
        KeyRow("chat.page.down", "pagedown", "page(1)", "a page down"),
        KeyRow("chat.start", "ctrl+home", "edge(-1)", "the first turn"),
        KeyRow("chat.end", "ctrl+end", "edge(1)", "the last turn"),
    ),
    typed="prompt",
)
PROMPT = Place(
    "the prompt",
    (
        KeyRow("prompt.send", "enter", "submit", "send"),
        KeyRow("prompt.line", "shift+enter,ctrl+j", "line", "a new line"),
        KeyRow("prompt.complete", "tab", "complete", "complete a command, or a path after @"),
    ),
    typed="prompt",
)
INSPECTOR = Place(
    "the round inspector",
    (
        KeyRow("inspector.close", "escape,f4,q", "close", "close"),
        KeyRow("inspector.back", "left,h", "step(-1)", "the round before"),
        KeyRow("inspector.forward", "right,l", "step(1)", "the next round"),
        KeyRow("inspector.first", "home", "edge(-1)", "the first round of the reply"),
        KeyRow("inspector.last", "end", "edge(1)", "the last round of the reply"),
        KeyRow("inspector.reply.before", "up,k", "reply(-1)", "the reply before"),
        KeyRow("inspector.reply.next", "down,j", "reply(1)", "the next reply"),
        KeyRow("inspector.find", "slash", "find", "find a token"),
        KeyRow("inspector.again", "n", "again", "find the next one"),
        KeyRow("inspector.trace", "t", "trace", "the whole text of the reply"),
        KeyRow("inspector.page.up", "pageup", "page(-1)", "scroll up, where the window is small"),
        KeyRow("inspector.page.down", "pagedown", "page(1)", "scroll down"),
    ),
)
FIND = Place(
    "the search in the round inspector",
    (
        KeyRow("find.go", "enter", "go", "find it"),
        KeyRow("find.close", "escape", "close", "close the search"),
    ),
    typed="box",
)
TRACE = Place(
    "the whole text of a reply",
    (
        KeyRow("trace.close", "escape,q,t", "dismiss", "close"),
        KeyRow("trace.down", "down,j", "scroll(1)", "a row down"),
        KeyRow("trace.up", "up,k", "scroll(-1)", "a row up"),
        KeyRow("trace.page.down", "pagedown,space", "page(1)", "a page down"),
        KeyRow("trace.page.up", "pageup", "page(-1)", "a page up"),
        KeyRow("trace.first", "home", "edge(-1)", "the beginning"),
        KeyRow("trace.last", "end", "edge(1)", "the end"),
        KeyRow("trace.reply.before", "left,h", "reply(-1)", "the reply before"),
        KeyRow("trace.reply.next", "right,l", "reply(1)", "the next reply"),
        KeyRow("trace.drafts", "d", "drafts", "show or hide what was drafted in vain"),
    ),
)
SESSIONS = Place(
    "the saved conversations",
    (
        KeyRow("sessions.open", "enter", "open", "go on with it; while it is renamed: name it"),
        KeyRow("sessions.close", "escape,f2", "close", "close"),
        KeyRow("sessions.up", "up", "move(-1)", "the one above"),
        KeyRow("sessions.down", "down", "move(1)", "the one below"),
        KeyRow("sessions.page.up", "pageup", "page(-1)", "a page up"),
        KeyRow("sessions.page.down", "pagedown", "page(1)", "a page down"),
        KeyRow("sessions.first", "ctrl+home", "edge(0)", "the first"),
        KeyRow("sessions.last", "ctrl+end", "edge(1)", "the last"),
        KeyRow("sessions.rename", "ctrl+r", "rename", "rename it"),
        KeyRow("sessions.fork", "ctrl+n", "fork", "fork: a copy of it"),
        KeyRow("sessions.delete", "ctrl+t", "delete", "delete it"),
        KeyRow("sessions.undo", "ctrl+z", "undo", "take the last deletion back"),
    ),
    typed="box",
)
MODELS = Place(
    "the models",
    (
        KeyRow("models.open", "enter", "open", "open it, or the path that is typed"),
        KeyRow("models.close", "escape", "dismiss(None)", "close"),
        KeyRow("models.up", "up", "move(-1)", "the one above"),
        KeyRow("models.down", "down", "move(1)", "the one below"),
        KeyRow("models.page.up", "pageup", "page(-1)", "a page up"),
        KeyRow("models.page.down", "pagedown", "page(1)", "a page down"),
    ),
    typed="box",
)
PARAMETERS = Place(
    "the parameters",
    (
        KeyRow("parameters.apply", "enter", "apply", "apply"),
        KeyRow("parameters.close", "escape", "dismiss(None)", "leave all as it was"),
        KeyRow("parameters.up", "up", "app.focus_previous", "the field above"),
        KeyRow("parameters.down", "down", "app.focus_next", "the field below"),
    ),
    typed="box",
)
RACE = Place(
    "the race",
    (
        KeyRow("race.close", "escape,q,enter", "close", "stop it; when it is over: close"),
        KeyRow("race.down", "down,j", "scroll(1)", "a row down"),
        KeyRow("race.up", "up,k", "scroll(-1)", "a row up"),
        KeyRow("race.page.down", "pagedown,space", "page(1)", "a page down"),
        KeyRow("race.page.up", "pageup", "page(-1)", "a page up"),
    ),
)
HELP = Place(
    "the help",
    (
        KeyRow("help.close", "escape,f1,q,enter", "dismiss", "close"),
        KeyRow("help.down", "down,j", "scroll(1)", "a row down"),
        KeyRow("help.up", "up,k", "scroll(-1)", "a row up"),
        KeyRow("help.page.down", "pagedown,space", "page(1)", "a page down"),
        KeyRow("help.page.up", "pageup", "page(-1)", "a page up"),
        KeyRow("help.first", "home", "edge(-1)", "the beginning"),
        KeyRow("help.last", "end", "edge(1)", "the end"),
    ),
)
COMMANDS = Place(
    "the list of commands or themes",
    (
        KeyRow("commands.choose", "enter", "choose", "do it"),
        KeyRow("commands.close", "escape", "escape", "close"),
        KeyRow("commands.up", "up", "command_list('cursor_up')", "the one above"),
        KeyRow("commands.down", "down", "cursor_down", "the one below"),
        KeyRow("commands.page.up", "pageup", "command_list('page_up')", "a page up"),
        KeyRow("commands.page.down", "pagedown", "command_list('page_down')", "a page down"),
        KeyRow("commands.first", "ctrl+home", "command_list('first')", "the first"),
        KeyRow("commands.last", "ctrl+end", "command_list('last')", "the last"),
    ),
    typed="box",
)
REPLAY = Place(
    "a replay",
    (
        KeyRow("replay.hold", "space", "hold", "hold, go on"),
        KeyRow("replay.step", "right", "step", "one round"),
        KeyRow("replay.faster", "plus,equals_sign", "speed(1)", "twice as fast"),
        KeyRow("replay.slower", "minus", "speed(-1)", "half as fast"),
        KeyRow("replay.quit", "q", "quit", "leave"),
    ),
)
PLACES = (CHAT, PROMPT, INSPECTOR, FIND, TRACE, SESSIONS, MODELS, PARAMETERS, RACE, HELP, COMMANDS, REPLAY)
EVERYWHERE = tuple(row for row in CHAT.rows if row.id in ("chat.quit", "chat.commands"))
"""Keys of the chat that work on the screens above it too."""

TOGETHER = (
    (*CHAT.rows, *PROMPT.rows),
    (*CHAT.rows, *REPLAY.rows),  # nothing is written in a replay
    *((*EVERYWHERE, *place.rows) for place in PLACES if place not in (CHAT, PROMPT, REPLAY)),
)
"""Rows that work at the same time, so that each needs keys of its own."""

_LINE = (
    *("left", "right", "shift+left", "shift+right", "ctrl+left", "ctrl+right", "ctrl+shift+left", "ctrl+shift+right"),
    *("home", "ctrl+a", "end", "ctrl+e", "shift+home", "shift+end", "backspace", "delete", "ctrl+d", "ctrl+w"),
    *("ctrl+backspace", "alt+backspace", "ctrl+u", "super+backspace", "ctrl+k", "ctrl+x", "ctrl+c", "super+c"),
    "ctrl+v",
)
BOX_KEYS = frozenset((*_LINE, "enter", "ctrl+shift+a"))
"""What a box of one line needs for itself."""

PROMPT_KEYS = frozenset(
    (
        *(*_LINE, "up", "down", "shift+up", "shift+down", "pageup", "pagedown", "f6", "f7", "alt+delete", "super+x"),
        *("ctrl+shift+k", "ctrl+z", "super+z", "ctrl+y", "super+y"),
    )
)
"""What the prompt's editor needs for itself."""
