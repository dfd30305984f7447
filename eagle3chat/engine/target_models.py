"""Targets that are known by name: what their checkpoints leave out.

Source of gemma4_31b: ExecuTorch's runner for its HQQ-INT4 directory, which carries no chat template and no generation
config. Knows no files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from eagle3chat.engine.checkpoint import TargetSource
from eagle3chat.engine.errors import CheckpointError, SettingError


@dataclass(frozen=True, slots=True)
class TargetModel:
    """What is true of a model whatever its checkpoint says."""

    family: str  # as TargetConfig has it
    template: str  # a built-in one, for a checkpoint without
    bos_token: str  # put first
    stop_ids: tuple[int, ...]  # where `end_token` has `end_id`, so that they mean these tokens
    end_token: str
    end_id: int


TARGET_MODELS: Mapping[str, TargetModel] = {
    "gemma4_31b": TargetModel("gemma4_text", "gemma4", "<bos>", (1, 106, 50), "<turn|>", 106)
}


def target_model(name: str) -> TargetModel:
    """A known model.

    Raises:
        SettingError: There is none of this name.
    """
    if name not in TARGET_MODELS:
        raise SettingError(f"The target model {name!r} is not known.", f"Known: {', '.join(TARGET_MODELS)}; or none.")
    return TARGET_MODELS[name]


def completed(source: TargetSource, name: str) -> TargetSource:
    """A target with what its checkpoint left out.

    Raises:
        SettingError: There is no model of this name.
        CheckpointError: The checkpoint is of another family.
    """
    model = target_model(name)
    if source.config.family != model.family:
        what = f"{source.name} is of the family {source.config.family}, and {name} of {model.family}"
        raise CheckpointError(f"{what}.", "Leave out --target-model.")
    controls = {token["content"]: token["id"] for token in json.loads(source.tokenizer).get("added_tokens") or []}
    bos, stops = source.bos_id, source.stop_ids
    if bos < 0:
        bos = controls.get(model.bos_token, -1)
    if controls.get(model.end_token) == model.end_id:
        stops = tuple(dict.fromkeys((*stops, *model.stop_ids)))
    return replace(source, bos_id=bos, stop_ids=stops)
