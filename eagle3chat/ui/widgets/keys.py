"""The last row: keys that work now, or one quiet line that tells something for a moment."""

from __future__ import annotations

from rich.cells import cell_len
from textual.content import Content
from textual.timer import Timer

from eagle3chat.key_map import USUAL, KeyMap
from eagle3chat.ui.clean import clean_line
from eagle3chat.ui.commands import COMMANDS, is_command
from eagle3chat.ui.completion import choice
from eagle3chat.ui.widgets.line import Line

NOTICE_SECONDS = 8.0

# (ids of keys, what they do, importance: the least important ones go first where there is no room)
IDLE = (
    ("<chat.temperature.down>/<chat.temperature.up>", "temp -/+", 1),
    ("<chat.chain.auto>/<chat.chain.shorter>/<chat.chain.longer>", "chain", 5),
    ("<chat.marks>", "marks", 3),
    ("<chat.inspect>", "inspect", 2),
    ("<chat.sessions>", "sessions", 0.5),
    ("<chat.copy>", "copy", 0.4),
    ("<chat.again>", "again", 0.3),
    ("<chat.new>", "new", 0.2),
    ("<chat.quit>", "quit", 6),
    ("<chat.help>", "help", 7),
    ("<chat.commands>", "commands", 4),
)
REPLYING = (*(key for key in IDLE if key[1] not in ("again", "new", "quit")), ("<chat.stop>", "stop", 9))


class Keys(Line):
    """Keys, notices, and hints for slash commands."""

    def __init__(self, keymap: KeyMap = USUAL) -> None:
        super().__init__()
        self._keymap = keymap
        self._keys: tuple[tuple[str, str, float], ...] = IDLE
        self._notice = ""
        self._error = False
        self._waiting = ""
        self._chain = True
        self._hint = ""
        self._words: tuple[str, ...] = ()
        self._more = False
        self._expiry: Timer | None = None

    @property
    def notice(self) -> str:
        """What is being told; empty: nothing."""
        return self._notice or self._waiting

    def show_replying(self, replying: bool) -> None:
        """Whether Esc has something to stop."""
        self._keys = REPLYING if replying else IDLE
        self.refresh()

    def show_chain(self, settable: bool) -> None:
        """Whether the chain can be set."""
        self._chain = settable
        self.refresh()

    def show_waiting(self, text: str) -> None:
        """What waits for the worker, for as long as it waits; empty: nothing."""
        self._waiting = clean_line(text)
        self.refresh()

    def show_more(self, more: bool) -> None:
        """Whether the end of the conversation is out of sight."""
        if more != self._more:
            self._more = more
            self.refresh()

    def show_hint(self, draft: str, before: str = "") -> None:
        """What the draft may become: a command, or with the text before the cursor a path."""
        hint = draft if is_command(draft) or draft == "/" else ""
        found = choice(before) if "@" in before else None
        words = found.words if found is not None else ()
        if (hint, words) != (self._hint, self._words):
            self._hint, self._words = hint, words
            self.refresh()

    def tell(self, text: str, error: bool = False, seconds: float | None = NOTICE_SECONDS) -> None:
        """Show a line for some seconds (None: until the next one); an empty one ends what is shown."""
        self._notice, self._error = clean_line(self._keymap.told(text)), error
        if self._expiry is not None:
            self._expiry.stop()
        self._expiry = self.set_timer(seconds, lambda: self.tell("")) if text and seconds else None
        self.refresh()

    def line(self, width: int) -> Content:
        if self.notice:
            error = self._error and self._notice
            return Content.styled(f" {self.notice}", "$text-error" if error else "$text")
        if self._hint:
            return self._hints(width)
        if self._words:
            key = self._keymap.spelled("prompt.complete")
            return Content.styled(f" {key}  " + "  ".join(clean_line(word) for word in self._words), "$quiet")
        working = [key for key in self._keys if self._chain or key[1] != "chain"]
        shown = [*working, *((("<chat.end>", "more below", 8),) if self._more else ())]
        keys = [(self._keymap.told(key), what, weight) for key, what, weight in shown]
        while len(keys) > 1 and sum(cell_len(key) + cell_len(what) + 4 for key, what, _ in keys) - 2 > width:
            keys.remove(min(keys, key=lambda item: item[2]))
        parts = [Content.assemble((f" {key}", "$quiet bold"), (f" {what}", "$quiet")) for key, what, _ in keys]
        return Content("  ").join(parts)

    def _hints(self, width: int) -> Content:
        typed = self._hint[1:].split(" ", 1)[0].lower()
        found = [command for command in COMMANDS if command.name.startswith(typed)]
        if len(found) == 1:
            usage = f" /{found[0].name} {found[0].argument}".rstrip()
            return Content.assemble((usage, "bold"), (f"  {found[0].help}", "$quiet"))
        names = "  ".join(f"/{command.name}" for command in found) or "no such command: /help lists them"
        return Content.styled(f" {names}", "$quiet")
