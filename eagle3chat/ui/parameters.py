"""What a person sets for a conversation, as fields of a form: text in, checked values out. Knows no widget."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from eagle3chat.engine.errors import SettingError
from eagle3chat.engine.events import Info
from eagle3chat.engine.requests import Controls
from eagle3chat.transcript_codec import Setup
from eagle3chat.ui.commands import checked_chain, with_auto
from eagle3chat.ui.figures import number


@dataclass(frozen=True, slots=True)
class Parameters:
    """Everything that the panel shows."""

    controls: Controls
    setup: Setup
    system: str = ""


@dataclass(frozen=True, slots=True)
class Field:
    """One line of the form."""

    name: str
    label: str
    hint: str


FIELDS = (
    Field("temperature", "temperature", "0 is greedy"),
    Field("top_k", "top-k", "most probable kept; 0 is off"),
    Field("top_p", "top-p", "share of the mass kept; 1 is off"),
    Field("min_p", "min-p", "share of the largest; 0 is off"),
    Field("seed", "seed", "the same one gives the same reply"),
    Field("repetition", "repetition", "penalty, with the prompt; 1 is off"),
    Field("presence", "presence", "penalty, reply; 0 is off"),
    Field("frequency", "frequency", "penalty, reply, by count; 0 is off"),
    Field("max_new_tokens", "max tokens", "of a reply; empty: what fits"),
    Field("chain", "chain", "drafted tokens a round, or auto"),
    Field("template", "template", "empty: the bundle's; opens it anew"),
    Field("system", "system", "message; \\n is a new line"),
)
_REAL = ("temperature", "top_p", "min_p", "repetition", "presence", "frequency")
_WHOLE = ("top_k", "seed")


def texts(parameters: Parameters) -> dict[str, str]:
    """What stands in each field."""
    controls, sampling, setup = parameters.controls, parameters.controls.sampling, parameters.setup
    found = {name: number(getattr(sampling, name)) for name in _REAL}
    found |= {name: str(getattr(sampling, name)) for name in _WHOLE}
    found["max_new_tokens"] = "" if setup.max_new_tokens is None else str(setup.max_new_tokens)
    found["chain"] = "auto" if controls.auto else str(controls.chain)
    found["template"] = setup.template or ""
    found["system"] = parameters.system.replace("\\", "\\\\").replace("\n", "\\n")
    return found


def parsed(before: Parameters, form: dict[str, str], info: Info | None) -> Parameters:
    """The values of a form. A field that was not touched keeps its value to the last digit.

    Raises:
        SettingError: A field holds no number or one outside its range; the message begins with the field's label.
    """
    values: dict[str, Any]
    changed = {name: text.strip() for name, text in form.items() if text != texts(before)[name]}
    sampling, controls, setup = before.controls.sampling, before.controls, before.setup
    system = before.system
    for field in FIELDS:
        if (text := changed.get(field.name)) is None:
            continue
        try:
            match field.name:
                case name if name in _REAL:
                    values = {name: _real(text)}
                    sampling = replace(sampling, **values)
                case name if name in _WHOLE:
                    values = {name: _whole(text)}
                    sampling = replace(sampling, **values)
                case "max_new_tokens":
                    setup = replace(setup, max_new_tokens=_limit(text))
                case "chain":
                    controls = _chain(controls, text, info)
                case "template":
                    setup = replace(setup, template=text or None)
                case "system":
                    system = _lines(text)
        except SettingError as error:
            raise SettingError(f"{field.label}: {error.message}", error.fix) from error
    return Parameters(replace(controls, sampling=sampling), setup, system)


def _chain(controls: Controls, text: str, info: Info | None) -> Controls:
    if text.lower() == "auto":
        return with_auto(controls, info)
    return replace(controls, chain=checked_chain(_whole(text), info), auto=False)


def _limit(text: str) -> int | None:
    if not text:
        return None
    limit = _whole(text)
    if limit < 1:
        raise SettingError(f"A reply of at most {limit} tokens is empty.", "Use 1 or more, or nothing.")
    return limit


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise SettingError(f"{text!r} is no whole number.") from None


def _real(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise SettingError(f"{text!r} is no number.") from None


def _lines(text: str) -> str:
    return "\\".join(part.replace("\\n", "\n") for part in text.split("\\\\"))
