"""The names of the screen's themes, for those who check a name without a screen."""

from __future__ import annotations

OWN = ("auto", "dark", "light")  # auto: by the terminal's background and colours
BUILTIN = (
    *("ansi-dark", "ansi-light", "atom-one-dark", "atom-one-light", "catppuccin-frappe", "catppuccin-latte"),
    *("catppuccin-macchiato", "catppuccin-mocha", "dracula", "flexoki", "gruvbox", "monokai", "nord", "rose-pine"),
    *("rose-pine-dawn", "rose-pine-moon", "solarized-dark", "solarized-light", "textual-dark", "textual-light"),
    *("tokyo-night",),
)
"""Those of the toolkit."""

THEMES = (*OWN, *BUILTIN)
