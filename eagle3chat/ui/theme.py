"""Colours: the five kinds of token, and the themes that the screen starts with.

The hues are the Okabe-Ito set, which colour-blind readers can tell apart, with darker relatives for light
backgrounds. Any other theme gets one of the two sets by its `dark` flag and may name its own values. Kinds differ
without colour too, so a terminal without colours loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from textual.theme import BUILTIN_THEMES, Theme

from eagle3chat.engine.errors import SettingError

DARK_KINDS = {
    "spec-accepted": "#56B4E9",
    "spec-correction": "#E69F00",
    "spec-bonus": "#CC79A7",
    "spec-rejected": "#999999",
    "spec-unreached": "#999999",
    "quiet": "#8A8A8A",
    "hairline": "#3A3A3A",
}
LIGHT_KINDS = {
    "spec-accepted": "#005A8C",
    "spec-correction": "#A34700",
    "spec-bonus": "#8C3F6C",
    "spec-rejected": "#5A5A5A",
    "spec-unreached": "#6A6A6A",
    "quiet": "#5F5F5F",
    "hairline": "#C4C4C4",
}
ANSI_KINDS = {
    "spec-accepted": "ansi_cyan",
    "spec-correction": "ansi_yellow",
    "spec-bonus": "ansi_magenta",
    "spec-rejected": "ansi_default",
    "spec-unreached": "ansi_default",
    "quiet": "ansi_default",
    "hairline": "ansi_default",
}

DARK = Theme(
    name="eagle-dark",
    primary="#56B4E9",
    secondary="#4A6A80",
    accent="#E69F00",
    warning="#E69F00",
    error="#E5786D",
    success="#009E73",
    foreground="#DEDEDE",
    background="#121212",
    surface="#1A1A1A",
    panel="#202020",
    dark=True,
    variables={"footer-key-foreground": "#56B4E9", "input-selection-background": "#56B4E9 30%"},
)
LIGHT = Theme(
    name="eagle-light",
    primary="#005A8C",
    secondary="#5C7C91",
    accent="#A34700",
    warning="#A34700",
    error="#A3262A",
    success="#00664B",
    foreground="#1E1E1E",
    background="#F4F4F2",
    surface="#EBEBE8",
    panel="#E4E4E0",
    dark=False,
    variables={"footer-key-foreground": "#005A8C", "input-selection-background": "#005A8C 25%"},
)


def kind_colours(theme: Theme) -> dict[str, str]:
    """Values of the variables that the style sheets use and that a theme may leave out."""
    if theme.ansi:
        return ANSI_KINDS
    return DARK_KINDS if theme.dark else LIGHT_KINDS


def pick_theme(wanted: str, environ: Mapping[str, str], *, no_color: bool) -> str:
    """A theme name: the wanted one, or for "auto" by the terminal's background (COLORFGBG), else dark.

    Without colour "auto" picks a theme of the terminal's own colours, which the toolkit then leaves out.

    Raises:
        SettingError: There is no such theme.
    """
    if wanted != "auto":
        name = {"dark": DARK.name, "light": LIGHT.name}.get(wanted, wanted)
        if name not in (DARK.name, LIGHT.name, *BUILTIN_THEMES):
            others = ", ".join(sorted(BUILTIN_THEMES))
            raise SettingError(f"There is no theme {wanted!r}.", f"Use auto, dark, light, or one of {others}.")
        return name
    background = environ.get("COLORFGBG", "").rpartition(";")[2]
    light = background in ("7", "15")
    if no_color:
        return "ansi-light" if light else "ansi-dark"
    return LIGHT.name if light else DARK.name
