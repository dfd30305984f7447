"""The settings file as it is written for a person: every key as a comment, with what it means and its default.

Knows the names of the settings, which `settings` checks, and the table of keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from eagle3chat.key_table import PLACES

KEY_COLUMN = 52  # characters before what a key does


@dataclass(frozen=True, slots=True)
class Key:
    """One key."""

    name: str
    value: str  # an example in TOML, the default where there is a fixed one
    meaning: str


SECTIONS = (
    (
        "The model",
        (
            Key("model", '"/path/to/a/bundle"', "a bundle directory; without one the built-in pair"),
            Key("backend", '"auto"', "auto, torch, mlx, scripted"),
            Key("device", '"auto"', "auto, cpu, cuda, mps"),
            Key("dtype", '"auto"', "auto, float32, bfloat16, int4"),
            Key("threads", "2", "of the CPU; without a number as many as bring something"),
            Key("template", '"chatml"', "gemma4, chatml, llama3, model, or a Jinja file; without one the bundle's"),
            Key("system", '"Answer briefly."', "the system message of new conversations"),
        ),
    ),
    (
        "Drafting",
        (Key("chain", '"auto"', "drafted tokens a round; 0 decodes plainly; auto finds the best"),),
    ),
    (
        "Sampling",
        (
            Key("temperature", "0.8", "0 is greedy"),
            Key("top_k", "0", "keep the most probable tokens; 0 is off"),
            Key("top_p", "1.0", "keep the most probable tokens that make up this much of the mass; 1 is off"),
            Key("min_p", "0.0", "keep tokens with at least this much of the largest probability; 0 is off"),
            Key("repetition_penalty", "1.0", "of prompt and reply; 1 is off"),
            Key("presence_penalty", "0.0", "of the reply, -2 to 2; 0 is off"),
            Key("frequency_penalty", "0.0", "of the reply, by count, -2 to 2; 0 is off"),
            Key("max_new_tokens", "1024", "of a reply; without a number to the end of the context"),
        ),
    ),
    (
        "A server (--server)",
        (Key("api_key", '"..."', "sent to that server alone; EAGLE3CHAT_API_KEY in the environment wins over it"),),
    ),
    (
        "The screen",
        (
            Key("theme", '"auto"', "auto (by the terminal's background and colours), dark, light, or a name of /theme"),
            Key("marks", '"full"', "how a reply shows the kinds of token: full, subtle, off"),
            Key("mouse", "true", "false leaves the mouse to the terminal, for its own selection"),
        ),
    ),
)


def template() -> str:
    """The file. All of it is comment, so it changes nothing."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Settings of eagle3chat. Flags win over this file, and this file over the bundle."
    yield "# Take the # away from a line to set it."
    for title, keys in SECTIONS:
        yield ""
        yield f"# {title}"
        for key in keys:
            yield ""
            yield f"# {key.meaning}"
            yield f"#{key.name} = {key.value}"
    yield ""
    yield "# Keys of the screens, by the id of what they do; several with commas between them. A key does one thing"
    yield "# at a place. Where something is written, letters and the keys of the editor stay with it."
    yield "#[keys]"
    for place in PLACES:
        yield ""
        yield f"# {place.title[0].upper()}{place.title[1:]}"
        for row in place.rows:
            line = f'#"{row.id}" = "{row.keys}"'
            yield f"{line:<{KEY_COLUMN}}# {row.does}"
