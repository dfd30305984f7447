"""Colours: the five kinds of token, and the themes that the screen starts with.

The hues are the Okabe-Ito set, which colour-blind readers can tell apart, with darker relatives for light
backgrounds. Any other theme gets one of the two sets by its `dark` flag, each colour moved until it can be read on
that theme's surfaces, and may name its own values. Kinds differ without colour too, so a terminal without colours
loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from textual.color import Color
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
    "spec-bonus": "#944060",
    "spec-rejected": "#5A5A5A",
    "spec-unreached": "#6A6A6A",
    "quiet": "#5F5F5F",
    "hairline": "#C4C4C4",
}
ANSI_DARK_KINDS = {
    "spec-accepted": "ansi_bright_cyan",
    "spec-correction": "ansi_bright_yellow",
    "spec-bonus": "ansi_bright_magenta",
    "spec-rejected": "ansi_default",
    "spec-unreached": "ansi_default",
    "quiet": "ansi_default",
    "hairline": "ansi_default",
    "emphasis": "ansi_bright_cyan",
    "chosen": "ansi_default",
    "chosen-text": "ansi_default",
}
ANSI_LIGHT_KINDS = ANSI_DARK_KINDS | {
    "spec-accepted": "ansi_blue",
    "spec-correction": "ansi_red",
    "spec-bonus": "ansi_magenta",
    "emphasis": "ansi_blue",
}

SHADES = ("background", "surface", "primary", "foreground")
CONTRAST = 4.5  # of text on what is behind it: WCAG 2.2, 1.4.3
CHOSEN = 0.25  # of the primary colour behind the row that is chosen
STEP = 0.08  # by which a colour is moved towards white or black

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
    """Values of the variables that the style sheets use and that a theme may leave out, to be read on its surfaces."""
    if theme.ansi:
        return ANSI_DARK_KINDS if theme.dark else ANSI_LIGHT_KINDS
    shades = theme.to_color_system().generate()
    background, surface, primary, foreground = (Color.parse(shades[name]) for name in SHADES)
    behind = [background, surface]
    chosen = surface.blend(primary, CHOSEN)
    towards = Color(255, 255, 255) if theme.dark else Color(0, 0, 0)
    kinds = {name: Color.parse(value) for name, value in (DARK_KINDS if theme.dark else LIGHT_KINDS).items()}
    kinds["emphasis"] = primary
    found = {name: _readable(color, behind, towards) for name, color in kinds.items() if name != "hairline"}
    found |= {"chosen": chosen.hex, "chosen-text": _readable(foreground, [chosen], towards)}
    return found | {"hairline": kinds["hairline"].hex}


def contrast(one: Color, other: Color) -> float:
    """The ratio of WCAG 2: 1 (the same) to 21 (black on white)."""
    lower, higher = sorted((_luminance(one), _luminance(other)))
    return (higher + 0.05) / (lower + 0.05)


def _luminance(color: Color) -> float:
    parts = (part / 255 for part in color.rgb)
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _readable(color: Color, behind: Sequence[Color], towards: Color) -> str:
    """The colour, moved until it can be read on all that is behind it."""
    for step in range(round(1 / STEP) + 1):
        moved = color.blend(towards, step * STEP)
        if all(contrast(moved, back) >= CONTRAST for back in behind):
            return moved.hex
    return towards.hex


def pick_theme(
    wanted: str, environ: Mapping[str, str], *, no_color: bool, light: bool | None = None, few: bool = False
) -> str:
    """A theme's name: the wanted one, or for "auto" one that suits the terminal.

    Args:
        wanted: A name, or "dark", "light", "auto".
        environ: COLORFGBG tells of the background where the terminal has not.
        no_color: "auto" picks a theme of the terminal's own colours, which the toolkit then leaves out.
        light: What the terminal told of its background; None: nothing.
        few: It has 16 colours or fewer: "auto" leaves them to it.

    Raises:
        SettingError: There is no such theme.
    """
    if wanted != "auto":
        name = {"dark": DARK.name, "light": LIGHT.name}.get(wanted, wanted)
        if name not in (DARK.name, LIGHT.name, *BUILTIN_THEMES):
            others = ", ".join(sorted(BUILTIN_THEMES))
            raise SettingError(f"There is no theme {wanted!r}.", f"Use auto, dark, light, or one of {others}.")
        return name
    if light is None:
        light = environ.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15")
    if no_color or few:
        return "ansi-light" if light else "ansi-dark"
    return LIGHT.name if light else DARK.name
