"""A conversation written into a file of another form: HTML, Markdown or JSON, by the file's ending. Knows no widget."""

from __future__ import annotations

import os
from pathlib import Path

from eagle3chat.engine.errors import SettingError
from eagle3chat.transcript import load

FORMS = ("html", "md", "json")


def export(transcript: Path, wanted: str) -> Path:
    """Write it.

    Args:
        transcript: The conversation's file.
        wanted: A path that ends in one of FORMS, or one of FORMS alone, or nothing: HTML, by the conversation's id,
            in the working directory.

    Returns:
        Where it is.

    Raises:
        SettingError: There is such a file already, it cannot be written, or its ending is not known.
        TranscriptError: The transcript cannot be read.
    """
    from eagle3chat.transcript_html import page
    from eagle3chat.transcript_text import document, markdown

    named = wanted if wanted not in ("", *FORMS) else f"{transcript.stem}.{wanted or 'html'}"
    path = Path(os.path.expanduser(named))
    form = {"htm": "html"}.get(path.suffix.lstrip("."), path.suffix.lstrip("."))
    if form not in FORMS:
        raise SettingError(f"What {named} should hold is not known.", "End it in .html, .md or .json.")
    text = {"html": page, "md": markdown, "json": document}[form](load(transcript))
    try:
        with path.open("x", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except FileExistsError:
        raise SettingError(f"There is a file {named} already.", "Name another one.") from None
    except OSError as error:
        raise SettingError(f"{named} cannot be written: {(error.strerror or str(error)).lower()}.") from None
    return path.resolve()
