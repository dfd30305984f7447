"""Large pastes as numbered placeholders: the prompt stays small, the message gets the text. Knows no widget."""

from __future__ import annotations

import re

LINES = 20  # a paste of more lines gets a placeholder
CHARACTERS = 2000  # and one of more characters
_PLACEHOLDER = re.compile(r"\[paste \d+: [\d,]+ (?:lines|characters)\]")


class Pastes:
    """The pasted texts of one run. A placeholder that was edited is a text like any other."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}  # by placeholder

    def shorten(self, text: str) -> str:
        """What stands in the prompt for a paste: the text itself, or a placeholder of its own."""
        lines = text.count("\n") + 1
        if lines <= LINES and len(text) <= CHARACTERS:
            return text
        return self.hold(text)

    def hold(self, text: str) -> str:
        """The placeholder of a text, the same for the same text."""
        for placeholder, known in self._texts.items():
            if known == text:
                return placeholder
        lines = text.count("\n") + 1
        size = f"{lines} lines" if lines > 1 else f"{len(text):,} characters"
        placeholder = f"[paste {len(self._texts) + 1}: {size}]"
        self._texts[placeholder] = text
        return placeholder

    def expand(self, draft: str) -> str:
        """The draft with the texts of its placeholders; what a pasted text spells is not looked at."""
        return _PLACEHOLDER.sub(lambda match: self._texts.get(match[0], match[0]), draft)

    def used(self, draft: str) -> dict[str, str]:
        """The placeholders in a draft, and their texts."""
        return {m[0]: self._texts[m[0]] for m in _PLACEHOLDER.finditer(draft) if m[0] in self._texts}

    def adopt(self, draft: str, texts: dict[str, str]) -> str:
        """A draft of another run, its placeholders numbered as in this one."""
        return _PLACEHOLDER.sub(lambda m: self.hold(texts[m[0]]) if m[0] in texts else m[0], draft)
