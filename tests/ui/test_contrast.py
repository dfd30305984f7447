"""Our own colours can be read in every theme, and told apart by everybody."""

import importlib
import itertools
import math
import re
from pathlib import Path

import pytest
from textual.color import Color
from textual.theme import BUILTIN_THEMES
from textual.widget import Widget

from eagle3chat.theme_names import BUILTIN
from eagle3chat.ui import theme as themes
from eagle3chat.ui.app import ChatApp
from eagle3chat.ui.theme import CONTRAST, DARK, LIGHT, contrast, kind_colours, pick_theme
from eagle3chat.ui.widgets.lane import STYLES

COLOURED = [DARK, LIGHT, *(theme for theme in BUILTIN_THEMES.values() if not theme.ansi)]
KINDS = ("spec-accepted", "spec-correction", "spec-bonus")
XTERM = {1: (205, 0, 0), 4: (0, 0, 238), 5: (205, 0, 205), 11: (255, 255, 0), 13: (255, 0, 255), 14: (0, 255, 255)}
VGA = {1: (170, 0, 0), 4: (0, 0, 170), 5: (170, 0, 170), 11: (255, 255, 85), 13: (255, 85, 255), 14: (85, 255, 255)}


def test_the_names_are_those_of_the_toolkit():
    assert set(BUILTIN) == set(BUILTIN_THEMES)


def test_the_ratio_is_that_of_the_standard():
    black, white = Color(0, 0, 0), Color(255, 255, 255)
    assert contrast(black, white) == contrast(white, black) == pytest.approx(21)
    assert contrast(Color.parse("#767676"), white) == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("theme", COLOURED, ids=lambda theme: theme.name)
def test_text_can_be_read_on_what_is_behind_it(theme):
    shades = theme.to_color_system().generate()
    for name, value in kind_colours(theme).items():
        if name in ("hairline", "chosen", "chosen-text"):
            continue  # a line, and what stands on each other
        for behind in ("background", "surface"):
            assert contrast(Color.parse(value), Color.parse(shades[behind])) >= CONTRAST, (name, behind)
    kinds = kind_colours(theme)
    assert contrast(Color.parse(kinds["chosen-text"]), Color.parse(kinds["chosen"])) >= CONTRAST


@pytest.mark.parametrize("palette", [XTERM, VGA], ids=["xterm", "vga"])
@pytest.mark.parametrize("name", ["ansi-dark", "ansi-light"])
def test_the_terminals_own_colours_can_be_read_as_well(name, palette):
    behind = Color(0, 0, 0) if name == "ansi-dark" else Color(255, 255, 255)
    kinds = kind_colours(BUILTIN_THEMES[name])
    for kind in (*KINDS, "emphasis"):
        assert contrast(Color(*palette[Color.parse(kinds[kind]).ansi]), behind) >= CONTRAST, kind


NORMAL = ((1, 0, 0), (0, 1, 0), (0, 0, 1))
PROTAN = ((0.112, 0.888, 0.0), (0.112, 0.888, 0.0), (0.004, -0.004, 1.0))
DEUTAN = ((0.293, 0.707, 0.0), (0.293, 0.707, 0.0), (-0.022, 0.022, 1.0))
APART = 20  # in CIELAB, where 2.3 is just to be noticed; large areas of text are not compared side by side


def seen_by(color, matrix):
    """A colour in CIELAB as somebody without one kind of cone sees it (Viénot, Brettel and Mollon 1999)."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in color.normalized]
    red, green, blue = (max(0.0, sum(m * part for m, part in zip(row, linear, strict=True))) for row in matrix)
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("theme", [DARK, LIGHT], ids=["dark", "light"])
@pytest.mark.parametrize("matrix", [NORMAL, PROTAN, DEUTAN], ids=["all cones", "protan", "deutan"])
def test_the_kinds_differ_for_the_colour_blind(theme, matrix):
    kinds = kind_colours(theme)
    for one, other in itertools.combinations(KINDS, 2):
        a, b = (seen_by(Color.parse(kinds[kind]), matrix) for kind in (one, other))
        assert math.dist(a, b) > APART, (one, other)


def test_the_kinds_differ_without_any_colour():
    looks = [" ".join(word for word in style.split() if not word.startswith("$")) for style in STYLES.values()]
    marks = {"rejected": "x", "unreached": "()"}  # signs beside the style
    assert len({(look, marks.get(kind, "")) for kind, look in zip(STYLES, looks, strict=True)}) == len(STYLES)


def test_colours_are_variables_and_selectors_name_widgets():
    sheet = (Path(themes.__file__).parent / "chat.tcss").read_text()
    assert not re.search(r"#[0-9a-fA-F]{6}\b|(?<!-)\b(?:red|green|blue|yellow|cyan|magenta)\b", sheet)
    rules = re.sub(r"/\*.*?\*/|\{[^}]*\}", "", sheet, flags=re.DOTALL)
    assert "*" not in rules
    for file in Path(themes.__file__).parent.rglob("*.py"):
        if file.name != "theme.py":
            assert not re.search(r"""["'$ ]#[0-9a-fA-F]{6}\b""", file.read_text()), file.name
    source = Path(themes.__file__).with_name("app.py").read_text()
    assert ChatApp.CSS_PATH == "chat.tcss" and len(source.splitlines()) < 300


def test_few_colours_are_left_to_the_terminal():
    assert pick_theme("auto", {}, no_color=False, few=True) == "ansi-dark"
    assert pick_theme("auto", {"COLORFGBG": "0;15"}, no_color=False, few=True) == "ansi-light"
    assert pick_theme("auto", {"COLORFGBG": "0;15"}, no_color=False, light=False) == "eagle-dark"
    assert pick_theme("dark", {}, no_color=False, light=True, few=True) == "eagle-dark"


def test_a_file_holds_one_widget():
    root = Path(themes.__file__).parent
    for file in (*(root / "widgets").glob("*.py"), *(root / "screens").glob("*.py")):
        module = importlib.import_module(f"eagle3chat.ui.{file.parent.name}.{file.stem}")
        own = [c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__]
        assert sum(issubclass(c, Widget) for c in own) <= 1, file.name
