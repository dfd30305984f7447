"""Which chat template a bundle has: the one that was asked for, the model's own, or the one that its tokens give away.

Knows no template's text but the model's.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from eagle3chat.engine.checkpoint import TargetSource
from eagle3chat.engine.errors import CheckpointError, SettingError
from eagle3chat.engine.small_files import read_small
from eagle3chat.engine.target_models import target_model

BUILT_IN = {"<|im_start|>": "chatml", "<|start_header_id|>": "llama3", "<|turn>": "gemma4"}
"""Control token that gives a family's template away."""
TEMPLATE_BYTES = 1 << 20  # at most


def choose_template(template: str | None, target: TargetSource, model: str | None) -> tuple[str, str]:
    """The template's name for the manifest, and the text of chat_template.jinja; empty: no such file.

    Args:
        template: A built-in name, "model", or a file; None: nobody asked for one.
        model: A name of target_models.py; None: none.

    Raises:
        CheckpointError: There is none, and no token gives one away.
        SettingError: What was asked for is neither known nor a file.
    """
    if template is None and target.chat_template:
        return "model", target.chat_template
    if template is None and model is not None:
        return target_model(model).template, ""
    if template is None:
        tokens = {token["content"] for token in json.loads(target.tokenizer).get("added_tokens") or []}
        for token, name in BUILT_IN.items():
            if token in tokens:
                return name, ""
        raise CheckpointError(f"{target.name} has no chat template.", "Name one with --template.")
    if template in BUILT_IN.values():
        return template, target.chat_template
    if template == "model" and target.chat_template:
        return "model", target.chat_template
    file = Path(os.path.expanduser(template))
    if not file.is_file():
        known = ", ".join(BUILT_IN.values())
        raise SettingError(f"The chat template {template!r} is not known.", f"Known: {known}, model, or a file.")
    try:
        return "model", read_small(file, TEMPLATE_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(
            f"The chat template {file} cannot be read: {error}.", "Name a readable text file."
        ) from error
