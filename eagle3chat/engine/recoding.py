"""What an export quantises: which matrices of a target and a draft, and into which form.

    target    the embedding 8 bits, routers stay dense, all else as asked; a matrix whose columns the group does not
              divide takes a smaller group, or stays dense
    draft     linears 4 (or 8) bits in groups of 32, its embedding and head 8
    no form   a matrix of a format that has no exact affine form comes dense: 8 bits, or as asked, where that is allowed

Knows no files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from eagle3chat.engine.affine import unpack
from eagle3chat.engine.affine_source import Form, array_of, quantization_of
from eagle3chat.engine.checkpoint import DraftSource, TargetSource
from eagle3chat.engine.config import Quantization
from eagle3chat.engine.errors import CheckpointError, SettingError
from eagle3chat.engine.expert_layout import expert_routers
from eagle3chat.engine.hf_config import quantization_json
from eagle3chat.engine.layout import DRAFT_EMBEDDING, GROUPS, draft_tensors, group_and_bits, quantizable
from eagle3chat.engine.quantise import F32, Coding, Errors, floats, quantised
from eagle3chat.engine.tensor_file import ITEM_BYTES, Buffer, LazyTensor

EMBEDDING = "model.embed_tokens"
HEAD = "lm_head"
FALLBACK = Coding(bits=8)
DRAFT_BITS = (4, 8)


@dataclass(frozen=True, slots=True)
class Changes:
    """What an export changes of its sources."""

    target: Coding | None = None  # None: as it is
    draft_bits: int = 0  # of its linears; 0: as it is
    refine: bool = False
    requantize: bool = False  # quantise what has no exact form, or is quantised already


def recoded_target(source: TargetSource, changes: Changes, errors: Errors) -> TargetSource:
    """A target with its matrices quantised as `changes` says.

    Args:
        errors: Filled when the tensors are read.

    Raises:
        CheckpointError: A matrix has no exact form, or the target is quantised already, and neither may be changed.
    """
    if source.inexact and not changes.requantize:
        module, reason = next(iter(source.inexact.items()))
        count = len(source.inexact)
        what = f"{module}{f' and {count - 1} more' if count > 1 else ''} cannot be converted exactly: {reason}"
        raise CheckpointError(f"{source.name}: {what}.", "Quantise anew with --requantize; the error is then printed.")
    forms = _forms(source)
    if changes.target is not None and forms and not changes.requantize:
        raise CheckpointError(
            f"{source.name} is quantised already.", "Leave out --quantize-target, or add --requantize."
        )
    if changes.target is None and not source.inexact:
        return source
    tensors = {tensor.name: tensor for tensor in source.tensors}
    mxfp4 = source.quantization.mxfp4 if source.quantization is not None else ()
    routers = {module for module, _, _ in expert_routers(source.config)}
    for module, shape in quantizable(source.config):
        wanted = changes.target or (FALLBACK if module in source.inexact else None)
        coding = None
        if wanted is not None and module not in routers and module not in mxfp4:
            coding = _coding(wanted, 8 if module == EMBEDDING else wanted.bits, shape[-1])
        if coding is None:
            continue
        dense = _dense(tensors, module, forms.pop(module, None))
        forms[module] = coding.group, coding.bits
        _replace(tensors, module, quantised(dense, coding, errors))
    quantization = quantization_of(forms) or (Quantization() if mxfp4 else None)
    if quantization is not None:
        quantization = replace(quantization, mxfp4=mxfp4)
    values = {key: value for key, value in source.config_json.items() if key != "quantization"}
    if quantization is not None:
        values["quantization"] = quantization_json(quantization)
    return replace(
        source, tensors=tuple(tensors.values()), quantization=quantization, config_json=values, inexact={}, linkable=()
    )


def recoded_draft(source: DraftSource, changes: Changes, errors: Errors) -> tuple[DraftSource, Quantization | None]:
    """A draft with its matrices quantised as `changes` says, and what that is.

    Raises:
        SettingError: So many bits are not possible.
        CheckpointError: It is quantised already.
    """
    if not changes.draft_bits:
        return source, source.quantization
    if changes.draft_bits not in DRAFT_BITS:
        raise SettingError(f"A draft of {changes.draft_bits} bits is not possible.", "Use --draft-bits 4 or 8.")
    if source.quantization is not None:
        raise CheckpointError(f"{source.name} is quantised already.", "Leave out --quantize-draft.")
    tensors = {tensor.name: tensor for tensor in source.tensors}
    shapes = draft_tensors(source.config)
    forms: dict[str, Form] = {}
    for name, tensor in list(tensors.items()):
        matrix = len(shapes.get(name, ())) == 2 or name == DRAFT_EMBEDDING
        module = name.removesuffix(".weight")
        bits = 8 if name == DRAFT_EMBEDDING or module == HEAD else changes.draft_bits
        coding = _coding(Coding(bits, 32, changes.refine), bits, tensor.shape[-1]) if matrix else None
        if coding is not None:
            forms[module] = coding.group, coding.bits
            _replace(tensors, module, quantised(tensor, coding, errors))
    return replace(source, tensors=tuple(tensors.values())), quantization_of(forms)


def _coding(wanted: Coding, bits: int, columns: int) -> Coding | None:
    """With the widest group that is no wider than wanted and divides the columns; None: there is none."""
    group = next((g for g in sorted(GROUPS, reverse=True) if g <= wanted.group and columns % g == 0), None)
    return None if group is None else replace(wanted, bits=bits, group=group)


def _forms(source: TargetSource) -> dict[str, Form]:
    """Of the modules that are quantised already."""
    if source.quantization is None:
        return {}
    modules = [tensor.name.removesuffix(".biases") for tensor in source.tensors if tensor.name.endswith(".biases")]
    return {module: group_and_bits(source.quantization, module) for module in modules}


def _replace(tensors: dict[str, LazyTensor], module: str, made: Iterable[LazyTensor]) -> None:
    """Put three tensors in the place of a module's, next to each other."""
    for part in ("weight", "scales", "biases"):
        tensors.pop(f"{module}.{part}", None)
    tensors.update({tensor.name: tensor for tensor in made})


def _dense(tensors: Mapping[str, LazyTensor], module: str, form: Form | None) -> LazyTensor:
    """A module's weight as numbers."""
    weight = tensors[f"{module}.weight"]
    if form is None:
        return weight
    return opened(weight, tensors[f"{module}.scales"], tensors[f"{module}.biases"], form[1])


def opened(weight: LazyTensor, scales: LazyTensor, biases: LazyTensor, bits: int) -> LazyTensor:
    """A quantised matrix [.., N, K] as its numbers, rounded to float32; only whole rows can be read."""
    columns = weight.shape[-1] * 32 // bits
    size = 4 * columns
    shape = (*weight.shape[:-1], columns)

    def part(start: int, end: int) -> Buffer:
        rows = slice(start // size, end // size)
        words, scale, bias = (_rows(tensor, rows) for tensor in (weight, scales, biases))
        codes = unpack(words.view("<u4"), bits).astype(np.float32)
        grouped = codes.reshape(len(codes), scale.shape[1], -1)
        grouped *= scale[..., None]
        grouped += bias[..., None]
        return grouped.reshape(len(codes), -1).tobytes()

    return LazyTensor(weight.name, "F32", shape, lambda: part(0, size * int(np.prod(shape[:-1]))), part)


def _rows(tensor: LazyTensor, rows: slice) -> F32:
    """Some rows of a matrix, those before the last axis taken as one; words as they are."""
    if tensor.part is None:
        array = array_of(tensor)
        return np.ascontiguousarray(array.reshape(-1, tensor.shape[-1])[rows])
    width = tensor.shape[-1] * ITEM_BYTES[tensor.dtype]
    data = tensor.part(rows.start * width, rows.stop * width)
    if tensor.dtype == "U32":
        return np.frombuffer(data, "<u4").reshape(-1, tensor.shape[-1])
    return floats(data, tensor.dtype).reshape(-1, tensor.shape[-1])
