"""All saved conversations: what is typed filters them by their words; keys open, name, copy and delete."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from eagle3chat.engine.errors import Eagle3Error, TranscriptError
from eagle3chat.key_map import USUAL, KeyMap
from eagle3chat.key_table import SESSIONS
from eagle3chat.transcript import Transcript
from eagle3chat.transcript_index import Found, TranscriptIndex
from eagle3chat.transcript_store import delete, fork, rename, undelete
from eagle3chat.ui.bindings import bindings
from eagle3chat.ui.clean import clean_line
from eagle3chat.ui.glyphs import Glyphs
from eagle3chat.ui.session_line import excerpt_line, session_line
from eagle3chat.ui.widgets.line import first_fitting
from eagle3chat.ui.widgets.row_list import RowList

LIST_ONLY = ("move", "page", "edge", "rename", "fork", "delete", "undo")
MOST_HITS = 500  # of a search that are listed
_OPEN, _CLOSE = "<sessions.open> open", "<sessions.close> close"
_CHANGE = "<sessions.rename> rename", "<sessions.fork> fork", "<sessions.delete> delete", "<sessions.undo> undo"
HINTS = (
    "   ".join((_OPEN, *_CHANGE, _CLOSE)),
    "  ".join((_OPEN, *_CHANGE, _CLOSE)),
    "  ".join((_OPEN, *_CHANGE[:3], _CLOSE)),
    "  ".join((_OPEN, _CHANGE[0], _CLOSE)),
    "  ".join((_OPEN, _CLOSE)),
)


class Sessions(ModalScreen[Path | None]):
    """The list; dismissed with the transcript to open.

    Args:
        index: Of the directory.
        current: The transcript that is on screen.
        words: To begin with.
        clock: The time now.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(SESSIONS)

    def __init__(
        self,
        index: TranscriptIndex,
        current: Transcript | None,
        glyphs: Glyphs,
        words: str = "",
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        keymap: KeyMap = USUAL,
    ) -> None:
        super().__init__()
        self._keymap = keymap
        self._index = index
        self._current = current
        self._words = words
        self._named: Path | None = None  # being renamed
        self._deleted: list[Path] = []
        now, here = clock(), current.id if current else ""
        self._list: RowList[Found] = RowList(
            glyphs, lambda found, width: session_line(found, width, now, here), "looking", id="sessions-list"
        )

    def compose(self) -> ComposeResult:
        with Vertical(id="sessions"):
            yield Static("sessions", id="sessions-title", markup=False)
            yield Input(self._words, placeholder="words to look for", id="sessions-words")
            yield Input(placeholder="title", id="sessions-name", select_on_focus=False)
            yield self._list
            yield Static(id="sessions-excerpt", markup=False)
            yield Static(id="sessions-hint", markup=False)

    def on_mount(self) -> None:
        self.query_one("#sessions-name").display = False
        self.query_one("#sessions-words").focus()
        self.call_after_refresh(self._tell, "")  # what fits is known then
        self._look()

    def on_unmount(self) -> None:
        self._index.close()

    def on_resize(self) -> None:
        self._tell("")

    # What is found

    def _look(self, then: str | None = None) -> None:
        """Look for what is typed, and choose a conversation by its id."""
        self.run_worker(self._find(then), group="sessions", exclusive=True)

    async def _find(self, then: str | None) -> None:
        words = self._words
        try:
            hits, count = await asyncio.to_thread(self._search, words)
        except TranscriptError as error:
            self._tell(str(error), error=True)
            return
        place = next((i for i, hit in enumerate(hits) if hit.summary.id == then), 0)
        self._list.show(hits, place if then else 0, "nothing holds these words" if words.strip() else "none yet")
        shown = f"the first {len(hits)} of {count}" if count > len(hits) else str(count)
        self.query_one("#sessions-title", Static).update(
            Content.assemble(("sessions", "bold"), (f"  {shown}", "$quiet"))
        )

    def _search(self, words: str) -> tuple[list[Found], int]:
        self._index.refresh()
        hits = self._index.search(words, MOST_HITS if words.strip() else None)
        return hits, len(hits) if len(hits) < MOST_HITS else self._index.count(words)

    def on_row_list_chosen(self) -> None:
        self.query_one("#sessions-excerpt", Static).update(excerpt_line(self._list.chosen))

    def on_row_list_opened(self) -> None:
        self._open()

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        if event.input.id == "sessions-words" and event.value != self._words:
            self._words = event.value
            self._tell("")
            self._look()

    def _open(self) -> None:
        if (found := self._list.chosen) is not None:
            self.dismiss(found.summary.path)

    # Keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self._named is None or action not in LIST_ONLY  # while a title is written the list waits

    def action_open(self) -> None:
        """Go on with it; give it the title that is written."""
        if self._named is not None:
            self._rename(self._named, self.query_one("#sessions-name", Input).value)
        else:
            self._open()

    def action_close(self) -> None:
        """Leave the title as it is, or close."""
        if self._named is not None:
            self._end_name()
        else:
            self.dismiss(None)

    def action_move(self, rows: int) -> None:
        """Another row."""
        self._list.move(rows)

    def action_page(self, pages: int) -> None:
        """A page further."""
        self._list.page(pages)

    def action_edge(self, end: int) -> None:
        """The first or the last."""
        self._list.go(len(self._list) if end else 0)

    def action_rename(self) -> None:
        """Write a title."""
        if (found := self._list.chosen) is None:
            return
        self._named = found.summary.path
        name, words = self.query_one("#sessions-name", Input), self.query_one("#sessions-words", Input)
        words.display, name.display = False, True
        name.value = found.summary.title
        name.focus()
        self._tell("<sessions.open> names it, empty: by its first message; <sessions.close> leaves it as it is")

    def _end_name(self) -> None:
        self._named = None
        name, words = self.query_one("#sessions-name", Input), self.query_one("#sessions-words", Input)
        words.display, name.display = True, False
        words.focus()
        self._tell("")

    def _rename(self, path: Path, title: str) -> None:
        self._end_name()
        current = self._current
        if current is not None and current.path == path:
            self._do(lambda: current.title(" ".join(title.split())), path.stem)
        else:
            self._do(lambda: rename(path, title), path.stem)

    def action_fork(self) -> None:
        """Copy it; the copy is chosen."""
        if (found := self._list.chosen) is not None:
            self.run_worker(self._fork(found.summary.path), group="change")

    async def _fork(self, path: Path) -> None:
        try:
            if self._current is not None and self._current.path == path:
                self._current.flush()
            copy = await asyncio.to_thread(fork, path)
        except TranscriptError as error:
            return self._tell(str(error), error=True)
        self._tell("a copy, to go on from there")
        self._look(copy.stem)

    def action_delete(self) -> None:
        """Move it into the trash folder."""
        if (found := self._list.chosen) is None:
            return
        if self._current is not None and found.summary.path == self._current.path:
            return self._tell("This one is on screen: /new leaves it.", error=True)
        rows_after = self._list.place
        try:
            self._deleted.append(delete(found.summary.path))
        except TranscriptError as error:
            return self._tell(str(error), error=True)
        self._tell(f"deleted: {clean_line(found.summary.title)[:40]}   <sessions.undo> brings it back")
        self.run_worker(self._after_delete(rows_after), group="sessions", exclusive=True)

    async def _after_delete(self, place: int) -> None:
        await self._find(None)
        self._list.go(place)

    def action_undo(self) -> None:
        """Take back what was deleted last, here."""
        if not self._deleted:
            return self._tell("nothing was deleted here")
        path = self._deleted.pop()
        self._do(lambda: undelete(path.stem, path.parent.parent), path.stem)

    def _do(self, work: Callable[[], object], then: str) -> None:
        try:
            work()
        except Eagle3Error as error:
            self._tell(str(error), error=True)
        else:
            self._tell("")
            self._look(then)

    def _tell(self, text: str, error: bool = False) -> None:
        hint = self.query_one("#sessions-hint", Static)
        if text:
            hint.update(Content.styled(clean_line(self._keymap.told(text)), "$text-error" if error else "$quiet"))
        else:
            width = max(20, self.query_one("#sessions").scrollable_content_region.width)
            hint.update(first_fitting([Content.styled(self._keymap.told(text), "$quiet") for text in HINTS], width))
