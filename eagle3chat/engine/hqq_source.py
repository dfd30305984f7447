"""ExecuTorch's quantised directories (HQQ-INT4): torchao's tensors in safetensors, to MLX affine form, exactly.

    Int4Tensor                 qdata U8 [.., N, K/2], the even column in the low half, read as words as it stands;
                               scale and zero_point [.., K/g, N], the zero a fraction: w = scale * (u - zero)
    IntxUnpackedToInt8Tensor   qdata I8 [N, K], scale [N, K/g], zero_point I8: w = scale * (q - zero)

What a tensor is stands in the header's metadata, by logical name; `a.b.weight` has the parts `a.b._weight_qdata` and so
on. Names are those of the text model without `model.`. Source: torchao's safetensors support, 0.15 and later. A product
of two bfloat16 numbers needs 16 bits, so the biases are float32.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from eagle3chat.engine.affine import pack
from eagle3chat.engine.affine_source import Array, Codes, Converted, array_of, product
from eagle3chat.engine.errors import CheckpointError
from eagle3chat.engine.hf_names import text_name
from eagle3chat.engine.tensor_file import Buffer, LazyTensor

TENSOR_NAMES = "tensor_names"
"""Key of the metadata that is the sign of this format."""
PARTS = ["qdata", "scale", "zero_point"]
PLAIN = ("Tensor", "torch.Tensor")
WIDTHS = {"int8": 8, "int4": 4}
OTHER = "Use another checkpoint."


@dataclass(frozen=True, slots=True)
class _Stored:
    """The parts of one logical tensor."""

    where: str  # file and logical name, for messages
    qdata: LazyTensor
    scale: LazyTensor
    zero: LazyTensor
    group: int
    data: Mapping[str, Any]

    def refuse(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.where} {what}.", OTHER)


def hqq_tensors(raw: Mapping[str, LazyTensor], metadata: Mapping[str, str], where: str) -> Converted:
    """The target in such a directory.

    Args:
        raw: All stored tensors by key.
        metadata: Of the headers, merged.
        where: Names the directory in messages.

    Raises:
        CheckpointError: A tensor's kind is not known, or a part is missing or misshapen.
    """
    made = Converted()
    for name in _json(metadata, TENSOR_NAMES, where, list):
        inner = text_name(str(name))
        if not inner:
            continue  # of another part than the text model
        inner = inner if inner.startswith(("model.", "lm_head")) else f"model.{inner}"
        described = _json(metadata, name, where, dict)
        kind, at = described.get("_type"), f"{where}: {name}"
        if kind in PLAIN:
            made.tensors[inner] = replace(_part(raw, name, at), name=inner)
            continue
        module, _, leaf = inner.rpartition(".")
        if kind not in _KINDS or leaf != "weight":
            raise CheckpointError(f"{at} is a tensor of the kind {kind!r}, which is not known.", OTHER)
        made.add(module, _KINDS[kind](_stored(raw, name, described, at)), where)
    return made


def _json(metadata: Mapping[str, str], key: str, where: str, kind: type) -> Any:
    try:
        value = json.loads(metadata[key])
    except (KeyError, ValueError, TypeError):
        value = None
    if not isinstance(value, kind):
        raise CheckpointError(f"{where}: the header says nothing that is understood of {key}.", OTHER)
    return value


def _part(raw: Mapping[str, LazyTensor], key: str, where: str) -> LazyTensor:
    if key not in raw:
        raise CheckpointError(f"{where}: the tensor {key} is missing.", "Download the checkpoint again.")
    return raw[key]


def _stored(raw: Mapping[str, LazyTensor], name: str, described: Mapping[str, Any], where: str) -> _Stored:
    module, _, leaf = name.rpartition(".")
    data, names = described.get("_data"), described.get("_tensor_data_names")
    if not isinstance(data, dict) or not isinstance(names, list):
        raise CheckpointError(f"{where}: the header's description is malformed.", OTHER)
    extra = sorted(set(names) ^ set(PARTS))
    if extra:
        raise CheckpointError(f"{where}: the part {extra[0]} is one too many or missing.", OTHER)
    block = data.get("block_size")
    if not isinstance(block, list) or not block or any(size != 1 for size in block[:-1]) or type(block[-1]) is not int:
        raise CheckpointError(f"{where}: blocks of {block!r} are not known here.", OTHER)
    if data.get("activation_quantization") is not None:
        raise CheckpointError(f"{where}: quantised activations are not known here.", OTHER)
    qdata, scale, zero = (_part(raw, f"{module}._{leaf}_{part}", where) for part in PARTS)
    return _Stored(where, qdata, scale, zero, block[-1], data)


def _int4(stored: _Stored) -> Codes:
    qdata = stored.qdata
    if qdata.dtype != "U8":
        # The same class name with I8 bytes means two's complement and another zero.
        raise stored.refuse(f"has 4-bit codes of the type {qdata.dtype}, not U8")
    shape = (*qdata.shape[:-1], 2 * qdata.shape[-1])
    _check(stored, shape, (*shape[:-2], shape[-1] // stored.group, shape[-2]))

    def turned(tensor: LazyTensor) -> Array:
        return np.ascontiguousarray(array_of(tensor).swapaxes(-1, -2))

    return Codes(
        shape=shape,
        group=stored.group,
        bits=4,
        words=lambda: np.frombuffer(qdata.read(), "<u4"),
        scales=lambda: turned(stored.scale),
        biases=lambda: product(turned(stored.scale), -turned(stored.zero).astype(np.float64)),
        scale_type=stored.scale.dtype,
        bias_type="F32",
        word_part=qdata.part,
    )


def _int8(stored: _Stored) -> Codes:
    qdata, target = stored.qdata, stored.data.get("target_dtype")
    bits = WIDTHS.get(target.get("_data", "") if isinstance(target, dict) else "")
    if qdata.dtype != "I8" or bits is None:
        raise stored.refuse(f"has {qdata.dtype} codes for {target!r}, which is not known")
    middle = 2 ** (bits - 1)
    _check(stored, qdata.shape, (*qdata.shape[:-1], qdata.shape[-1] // stored.group))

    def codes(data: Buffer) -> Array:
        return np.frombuffer(data, np.uint8) + np.uint8(middle)  # from two's complement, modulo 256

    def words() -> Array:
        return pack(codes(qdata.read()).reshape(-1, qdata.shape[-1]), bits)

    def word_part(start: int, end: int) -> bytes:
        assert qdata.part is not None
        return codes(qdata.part(start, end)).tobytes()

    zeros = array_of(stored.zero)
    whole = zeros.any()  # symmetric ones, the usual, keep the scale's type: their biases only shift its exponent
    return Codes(
        shape=qdata.shape,
        group=stored.group,
        bits=bits,
        words=words,
        scales=lambda: array_of(stored.scale),
        biases=lambda: product(array_of(stored.scale), -(middle + array_of(stored.zero).astype(np.float64))),
        scale_type=stored.scale.dtype,
        bias_type="F32" if whole else stored.scale.dtype,
        word_part=word_part if bits == 8 and qdata.part is not None else None,
    )


def _check(stored: _Stored, shape: tuple[int, ...], groups: tuple[int, ...]) -> None:
    declared = stored.data.get("shape")
    if declared is not None and tuple(declared) != shape:
        raise stored.refuse(f"has the shape {list(shape)}, and the header says {declared}")
    if len(shape) < 2 or shape[-1] % stored.group:
        raise stored.refuse(f"of the shape {list(shape)} has groups of {stored.group}")
    for part in (stored.scale, stored.zero):
        if part.shape != groups:
            raise stored.refuse(f"has {part.name} of the shape {list(part.shape)}, not {list(groups)}")
    if stored.scale.dtype not in ("F32", "F16", "BF16"):
        raise stored.refuse(f"has scales of the type {stored.scale.dtype}")


_KINDS = {"Int4Tensor": _int4, "IntxUnpackedToInt8Tensor": _int8}
