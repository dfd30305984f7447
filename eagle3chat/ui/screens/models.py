"""The picker of a model: bundles found and opened lately, or a path that is typed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from eagle3chat.key_map import USUAL, KeyMap
from eagle3chat.key_table import MODELS
from eagle3chat.models import Model, model_at, models
from eagle3chat.ui.bindings import bindings
from eagle3chat.ui.clean import clean_line
from eagle3chat.ui.figures import size
from eagle3chat.ui.glyphs import Glyphs
from eagle3chat.ui.widgets.row_list import RowList

HINT = "<models.open> open   <models.up>/<models.down> choose   <models.close> close"


class Models(ModalScreen[str | None]):
    """The list; dismissed with the directory of the bundle to open.

    Args:
        current: The directory of the bundle that is open.
        find: Finds the bundles.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(MODELS)

    def __init__(
        self, current: str, glyphs: Glyphs, find: Callable[[], list[Model]] = models, *, keymap: KeyMap = USUAL
    ) -> None:
        super().__init__()
        self._keymap = keymap
        self._current = Path(current).resolve() if current else None
        self._find = find
        self._all: list[Model] = []
        self._list: RowList[Model] = RowList(glyphs, self._line, "looking", id="models-list")

    def compose(self) -> ComposeResult:
        with Vertical(id="models"):
            yield Static(Content.styled("models", "bold"), markup=False)
            yield Input(placeholder="a name, or the path of a bundle", id="models-words")
            yield self._list
            yield Static(id="models-where", markup=False)
            yield Static(Content.styled(self._keymap.told(HINT), "$quiet"), id="models-hint", markup=False)

    def on_mount(self) -> None:
        self.query_one(Input).focus()
        self.run_worker(self._look(), group="models")

    async def _look(self) -> None:
        self._all = await asyncio.to_thread(self._find)
        self._filter(self.query_one(Input).value)

    def _filter(self, words: str) -> None:
        wanted = words.lower().split()
        rows = [m for m in self._all if all(word in f"{m.name} {m.draft} {m.path}".lower() for word in wanted)]
        here = next((i for i, model in enumerate(rows) if model.path == self._current), 0)
        self._list.show(rows, here, "no bundle: type the path of one, or make one with eagle3chat export")

    def _line(self, model: Model, width: int) -> Content:
        mark = ("open  ", "$spec-accepted") if model.path == self._current else ""
        draft = f"draft {clean_line(model.draft)}" if model.draft else "no draft"
        facts = ("cannot be opened", "$text-error") if model.problem else (f"{draft}  {size(model.size)}", "$quiet")
        right = Content.assemble(facts)
        left = Content.assemble(mark, clean_line(model.name)).truncate(
            max(1, width - right.cell_length - 2), ellipsis=True
        )
        return Content.assemble(left, " " * max(2, width - left.cell_length - right.cell_length), right)

    def on_row_list_chosen(self) -> None:
        model = self._list.chosen
        where = "" if model is None else clean_line(model.problem or str(model.path))
        style = "$text-error" if model is not None and model.problem else "$quiet"
        self.query_one("#models-where", Static).update(Content.styled(where, style))

    def on_row_list_opened(self) -> None:
        self._open(self._list.chosen)

    def action_move(self, rows: int) -> None:
        """Another row."""
        self._list.move(rows)

    def action_page(self, pages: int) -> None:
        """A page further."""
        self._list.page(pages)

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._filter(event.value)

    async def action_open(self) -> None:
        """The chosen one, or the path that is written."""
        text = self.query_one(Input).value.strip()
        if text and self._list.chosen is None and (os.sep in text or Path(text).is_dir()):
            self._open(await asyncio.to_thread(model_at, Path(text)))
        else:
            self._open(self._list.chosen)

    def _open(self, model: Model | None) -> None:
        if model is None:
            return
        if model.problem:
            self.query_one("#models-where", Static).update(Content.styled(clean_line(model.problem), "$text-error"))
        else:
            self.dismiss(str(model.path))
