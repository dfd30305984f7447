"""The panel of a conversation's parameters: a form of one line a field."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from eagle3chat.engine.errors import SettingError
from eagle3chat.engine.events import Info
from eagle3chat.key_map import USUAL, KeyMap
from eagle3chat.key_table import PARAMETERS
from eagle3chat.ui.bindings import bindings
from eagle3chat.ui.clean import clean_line
from eagle3chat.ui.parameters import FIELDS, Parameters, parsed, texts
from eagle3chat.ui.widgets.line import first_fitting

_APPLY, _FIELD = "<parameters.apply> apply", "<parameters.up>/<parameters.down> field"
HINTS = (
    f"{_APPLY}   {_FIELD}   <parameters.close> leave as it was",
    f"{_APPLY}  {_FIELD}  <parameters.close> leave",
    f"{_APPLY}  <parameters.close> leave",
)


class ParameterPanel(ModalScreen[Parameters | None]):
    """The form; dismissed with what is to hold from now on.

    Args:
        before: What holds now.
        info: The pair that is open, whose chain is the longest.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(PARAMETERS)

    def __init__(self, before: Parameters, info: Info | None, keymap: KeyMap = USUAL) -> None:
        super().__init__()
        self._keymap = keymap
        self._before = before
        self._info = info

    def compose(self) -> ComposeResult:
        values = texts(self._before)
        with VerticalScroll(id="parameters", can_focus=False):
            yield Static(Content.styled("parameters of this conversation", "bold"), markup=False)
            for field in FIELDS:
                with Horizontal(classes="field"):
                    yield Static(field.label, classes="field-name", markup=False)
                    yield Input(values[field.name], id=f"field-{field.name}", select_on_focus=True)
                    yield Static(Content.styled(field.hint, "$quiet"), classes="field-hint", markup=False)
        yield Static(id="parameters-hint", markup=False)

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    def on_resize(self) -> None:
        width = max(20, self.query_one("#parameters").scrollable_content_region.width)
        hints = [Content.styled(self._keymap.told(text), "$quiet") for text in HINTS]
        self.query_one("#parameters-hint", Static).update(first_fitting(hints, width))

    def action_apply(self) -> None:
        """Check all fields, and close if they are right."""
        form = {field.name: self.query_one(f"#field-{field.name}", Input).value for field in FIELDS}
        try:
            self.dismiss(parsed(self._before, form, self._info))
        except SettingError as error:
            hint = Content.styled(clean_line(str(error)), "$text-error")
            self.query_one("#parameters-hint", Static).update(hint)
            label = error.message.partition(":")[0]
            wrong = next((field.name for field in FIELDS if field.label == label), FIELDS[0].name)
            self.query_one(f"#field-{wrong}", Input).focus()
