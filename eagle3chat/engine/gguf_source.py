"""A GGUF file as a target: same values, Hugging Face's names and row order.

Q4_0, Q4_1, Q8_0 (affine.py) and what gguf_blocks.py knows become MLX affine; F32, F16 and BF16 pass through; other
types have no exact form and are given dense. In the architecture "llama" the rows of q and k are stored so that a
rotary pair is two neighbours (2i, 2i+1) of a head; Hugging Face pairs (i, i + d/2). The rows are put back: whole rows
move, so weight, scales and biases move alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import numpy.typing as npt

from eagle3chat.engine.affine import GROUP, BlockKind, Blocks, NotExactError
from eagle3chat.engine.affine_source import Converted, quantization_of
from eagle3chat.engine.checkpoint import TargetSource, stop_ids
from eagle3chat.engine.config import Rope, TargetConfig
from eagle3chat.engine.errors import CheckpointError
from eagle3chat.engine.gguf_blocks import LAYOUTS, block_codes
from eagle3chat.engine.gguf_names import Architecture, architecture_of, bundle_name
from eagle3chat.engine.gguf_tokenizer import control_ids, gguf_tokenizer, gguf_tokenizer_config
from eagle3chat.engine.hf_config import number, target_config_json, whole
from eagle3chat.engine.layout import problem_in_target
from eagle3chat.engine.tensor_file import LazyTensor

DENSE = {"F32": "F32", "F16": "F16", "BF16": "BF16"}
ROPE_DIVISORS = "rope_freqs.weight"
LLAMA3_FACTORS = (8.0, 32.0)  # those of Llama 3.1 and 3.2; low 1, high 4, original context 8192
Array = npt.NDArray[Any]
Order = npt.NDArray[np.intp] | None


def open_gguf(path: Path) -> TargetSource:
    """Open a GGUF file.

    Raises:
        CheckpointError: It is damaged, or its architecture, a tensor or the tokenizer is not known.
    """
    metadata, stored = _read(path)
    where = path.name
    family = metadata.get("general.architecture")
    kind = architecture_of(family, where)
    config = _config(metadata, stored, kind, where)
    converted = Converted()
    for stored_name, tensor in stored.items():
        if stored_name == ROPE_DIVISORS:
            continue  # already in config.rope
        name = bundle_name(stored_name, kind, config.family, where)
        _add(converted, name, tensor, _row_order(name, config) if kind.paired else None, where)
    tensors = converted.tensors.values()
    tokenizer = gguf_tokenizer(metadata, where)
    quantization = quantization_of(converted.forms)
    problem = problem_in_target({tensor.name: tensor for tensor in tensors}, config, quantization)
    if problem:
        raise CheckpointError(f"{where}: {problem}.", "Use another file.")
    ends = [metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot")]
    bos = metadata.get("tokenizer.ggml.bos_token_id", -1) if metadata.get("tokenizer.ggml.add_bos_token") else -1
    return TargetSource(
        name=re.sub(r"[.-]((I?Q\d\w*)|F16|F32|BF16)$", "", path.stem, flags=re.IGNORECASE),
        config=config,
        quantization=quantization,
        tensors=tuple(tensors),
        config_json=target_config_json(config, quantization),
        tokenizer=tokenizer.to_str().encode(),
        tokenizer_config=gguf_tokenizer_config(metadata),
        chat_template=metadata.get("tokenizer.chat_template") or "",
        bos_id=bos,
        stop_ids=stop_ids((end for end in ends if end is not None), control_ids(metadata)),
        files=(path,),
        inexact=converted.inexact,
    )


def row_order(heads: int, head_dim: int) -> npt.NDArray[np.intp]:
    """[heads * head_dim] For each row of Hugging Face's q or k, the row of GGUF's that it is."""
    return np.arange(heads * head_dim).reshape(heads, head_dim // 2, 2).swapaxes(1, 2).reshape(-1)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metadata by key, and the gguf package's tensors by name."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
        metadata = {key: field.contents() for key, field in reader.fields.items()}
    except (OSError, ValueError, IndexError, KeyError) as error:
        raise CheckpointError(
            f"{path} is not a GGUF file, or is cut off ({error}).", "Download the file again."
        ) from error
    return metadata, {tensor.name: tensor for tensor in reader.tensors}


def _config(metadata: Mapping[str, Any], stored: Mapping[str, Any], kind: Architecture, where: str) -> TargetConfig:
    family = metadata["general.architecture"]
    prefix = f"{family}."
    keys = {key.removeprefix(prefix): _shortest(v) for key, v in metadata.items() if key.startswith(prefix)}
    width, heads = whole(keys, "embedding_length", where), whole(keys, "attention.head_count", where)
    head_dim = whole(keys, "attention.key_length", where, width // heads)
    if whole(keys, "rope.dimension_count", where, head_dim) != head_dim:
        raise CheckpointError(f"{where}: rotary positions on part of a head are not known here.", "Use another file.")
    tokens = metadata.get("tokenizer.ggml.tokens") or ()
    return TargetConfig(
        family=family,
        vocab_size=whole(keys, "vocab_size", where, len(tokens) or None),
        hidden_size=width,
        intermediate_size=whole(keys, "feed_forward_length", where),
        num_layers=whole(keys, "block_count", where),
        num_heads=heads,
        num_kv_heads=whole(keys, "attention.head_count_kv", where, heads),
        head_dim=head_dim,
        rms_eps=number(keys, "attention.layer_norm_rms_epsilon", where),
        rope=_rope(keys, stored.get(ROPE_DIVISORS), head_dim, where),
        max_position=whole(keys, "context_length", where),
        tie_embeddings="output.weight" not in stored,
        qk_norm=kind.qk_norm,
        attention_bias=kind.attention_bias,
    )


def _rope(keys: Mapping[str, Any], divisors: Any, head_dim: int, where: str) -> Rope:
    theta = number(keys, "rope.freq_base", where, 10000.0)
    kind = keys.get("rope.scaling.type", "none")
    if divisors is not None:
        found = np.asarray(divisors.data, np.float32).reshape(-1)
        for factor in LLAMA3_FACTORS:
            rope = Rope("llama3", theta, factor, 1.0, 4.0, 8192)
            expected = llama3_divisors(rope, head_dim)
            if kind == "none" and found.shape == expected.shape and np.allclose(found, expected, rtol=1e-4):
                return rope
        raise CheckpointError(
            f"{where}: {ROPE_DIVISORS} is not of a known kind of position scaling.", "Use another file."
        )
    if kind == "none":
        return Rope(theta=theta)
    if kind == "linear":
        return Rope(kind="linear", theta=theta, factor=number(keys, "rope.scaling.factor", where))
    raise CheckpointError(f"{where}: the rope scaling {kind!r} is not known.", "Known: none, linear.")


def llama3_divisors(rope: Rope, head_dim: int) -> npt.NDArray[np.float64]:
    """[head_dim/2] What Llama 3's position scaling divides each rotary frequency by.

    Frequencies of wavelength up to original/high stay, those from original/low on are divided by the factor,
    and the reciprocal is interpolated between (the published Llama 3.1 rule).
    """
    frequencies = rope.theta ** (-np.arange(0, head_dim, 2) / head_dim)
    turns = rope.original_max_position * frequencies / (2 * np.pi)
    smooth = np.clip((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0, 1.0)
    return np.asarray(1.0 / ((1.0 - smooth) / rope.factor + smooth))


def _shortest(value: Any) -> Any:
    """A float32 of the metadata as the decimal it was written from: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _row_order(name: str, config: TargetConfig) -> Order:
    if name.endswith("q_proj.weight"):
        return row_order(config.num_heads, config.head_dim)
    if name.endswith("k_proj.weight"):
        return row_order(config.num_kv_heads, config.head_dim)
    return None


def _add(converted: Converted, name: str, stored: Any, order: Order, where: str) -> None:
    """Put in what a stored tensor becomes."""
    kind = stored.tensor_type.name
    shape = tuple(int(n) for n in reversed(stored.shape))
    if order is not None and (len(shape) != 2 or shape[0] != len(order)):
        raise CheckpointError(f"{where}: {stored.name} has the shape {list(shape)}.", "Use another file.")
    if kind in DENSE:
        rows = stored.data.reshape(shape[0], -1) if len(shape) > 1 else stored.data
        part = partial(_part, rows) if order is None else None
        converted.tensors[name] = LazyTensor(name, DENSE[kind], shape, partial(_bytes, lambda: rows, order), part)
        return
    module, _, leaf = name.rpartition(".")
    if leaf != "weight" or len(shape) != 2:
        raise CheckpointError(f"{where}: {stored.name} has the type {kind}.", f"Known there: {', '.join(DENSE)}.")
    if kind in get_args(BlockKind):
        _add_affine(converted, module, Blocks(cast(BlockKind, kind), stored.data), order, f"{where}: {stored.name}")
    elif kind in LAYOUTS:
        converted.add(module, block_codes(kind, stored.data, order), where)
    else:
        _add_dense(converted, name, stored, shape, order, where)


def _add_affine(converted: Converted, module: str, blocks: Blocks, order: Order, where: str) -> None:
    """Blocks whose parameters fit float16."""
    rows, columns = blocks.shape
    groups = (rows, columns // GROUP)
    words = (rows, columns * blocks.bits // 32)
    converted.forms[module] = GROUP, blocks.bits
    for tensor in (
        LazyTensor(f"{module}.weight", "U32", words, partial(_bytes, blocks.words, order)),
        LazyTensor(f"{module}.scales", "F16", groups, partial(_bytes, blocks.scales, order)),
        LazyTensor(f"{module}.biases", "F16", groups, partial(_exact, blocks, order, where)),
    ):
        converted.tensors[tensor.name] = tensor


def _add_dense(converted: Converted, name: str, stored: Any, shape: tuple[int, ...], order: Order, where: str) -> None:
    """What has no affine form, as its numbers."""
    from gguf.quants import dequantize

    kind, width = stored.tensor_type.name, 4 * shape[1]
    try:
        dequantize(stored.data[:1], stored.tensor_type)
    except NotImplementedError as error:
        known = ", ".join([*get_args(BlockKind), *LAYOUTS, *DENSE])
        raise CheckpointError(f"{where}: {stored.name} has the type {kind}.", f"Known: {known}.") from error

    def part(start: int, end: int) -> bytes:
        chosen = slice(start // width, end // width) if order is None else order[start // width : end // width]
        return np.ascontiguousarray(dequantize(stored.data[chosen], stored.tensor_type), "<f4").tobytes()

    converted.tensors[name] = LazyTensor(name, "F32", shape, lambda: part(0, width * shape[0]), part)
    converted.inexact[name.removesuffix(".weight")] = f"the type {kind} has no affine form"


def _part(rows: Array, start: int, end: int) -> bytes:
    """The bytes of a memory-mapped array between two places."""
    return rows.reshape(-1).view(np.uint8)[start:end].tobytes()


def _bytes(values: Callable[[], Array], order: Order) -> bytes:
    array = values()
    return (array if order is None else array[order]).tobytes()


def _exact(blocks: Blocks, order: Order, where: str) -> bytes:
    try:
        return _bytes(blocks.biases, order)
    except NotExactError as error:
        raise CheckpointError(f"{where} cannot be converted exactly: {error}.", "Use another file.") from error
