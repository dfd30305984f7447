"""A Hugging Face directory as a target: config.json, safetensors (one file or shards), tokenizer.json.

Dense F32, F16 and BF16, the MLX affine layout or MXFP4, all unchanged. Other quantisations are refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from eagle3chat.engine.affine_source import quantization_of
from eagle3chat.engine.bundle import (
    CHAT_TEMPLATE,
    CONFIG,
    INDEX,
    TOKENIZER,
    TOKENIZER_BYTES,
    TOKENIZER_CONFIG,
    tokenizer_size,
)
from eagle3chat.engine.checkpoint import TargetSource, stop_ids
from eagle3chat.engine.config import Quantization, TargetConfig
from eagle3chat.engine.errors import BundleError, CheckpointError
from eagle3chat.engine.hf_config import read_json, read_target_config, target_config_json, text_config, whole
from eagle3chat.engine.hf_experts import with_stacks
from eagle3chat.engine.hf_names import text_name, unused
from eagle3chat.engine.hf_weights import OTHER, HfWeights, read_hf_weights
from eagle3chat.engine.layout import MXFP4_BITS, MXFP4_GROUP, group_and_bits, problem_in_target, quantizable
from eagle3chat.engine.small_files import read_small
from eagle3chat.engine.template_choice import TEMPLATE_BYTES
from eagle3chat.engine.tensor_file import LazyTensor

_REWRITTEN = """
    _sliding_window_pattern layer_types per_layer_config quantization quantization_config rope_local_base_freq
    rope_parameters rope_scaling rope_theta sliding_window_pattern
    """
REWRITTEN = frozenset(_REWRITTEN.split())
"""Keys of config.json that are written anew or left out."""
MODES = ("affine", "mxfp4")
"""Quantisations of MLX programs."""


def open_hf(path: Path) -> TargetSource:
    """Open a Hugging Face directory.

    Raises:
        CheckpointError: The family, a setting, a tensor or the quantisation is not known.
        BundleError: A file is missing or damaged.
    """
    config_file = path / CONFIG
    values = read_json(config_file)
    weights = read_hf_weights(path, values)
    stored = weights.converted.tensors
    config = read_target_config(values, "lm_head.weight" not in stored, str(config_file))
    left_out = unused(config)
    stored = {name: tensor for name, tensor in stored.items() if not name.startswith(left_out)}
    forms = {m: form for m, form in weights.converted.forms.items() if f"{m}.weight" in stored}
    if forms or weights.converted.inexact:
        quantization = quantization_of(forms)
    else:
        quantization = _quantization(values, config, str(config_file))
    tensors = with_stacks(stored, config, str(path))
    if quantization is not None:
        widths = {module: shape[-1] for module, shape in quantizable(config)}
        quantization = _completed(quantization, tensors, widths)
    problem = problem_in_target(tensors, config, quantization)
    if problem:
        raise CheckpointError(f"{path}: {problem}.", OTHER)
    text = text_config(values, str(config_file))
    kept = {key: value for key, value in text.items() if key not in REWRITTEN}
    words = _words(path)
    data = _tokenizer(path, config.vocab_size)
    settings = {k: v for k, v in words.items() if k != "chat_template"}
    return TargetSource(
        name=path.resolve().name,
        config=config,
        quantization=quantization,
        tensors=tuple(tensors.values()),
        config_json=kept | target_config_json(config, quantization),
        tokenizer=data,
        tokenizer_config=settings,
        chat_template=_chat_template(path, words),
        bos_id=_bos_id(data, words),
        stop_ids=_stop_ids(path, (values, text), words, data),
        files=_files(path, weights.files),
        linkable=weights.files if _unchanged(weights, tensors) else (),
        inexact=weights.converted.inexact,
    )


def _quantization(values: Mapping[str, Any], config: TargetConfig, where: str) -> Quantization | None:
    """What the config declares: MLX affine or MXFP4, or gpt-oss's experts in MXFP4; other kinds are refused."""
    declared = values.get("quantization") or values.get("quantization_config")
    if declared is None:
        return None
    method = declared.get("quant_method")
    mode = declared.get("mode", "affine")
    if method == "mxfp4" and config.experts is not None and config.experts.kind == "gpt_oss":
        return Quantization(MXFP4_GROUP, MXFP4_BITS)
    if method is not None or mode not in MODES:
        raise CheckpointError(f"{where}: the quantisation {method or mode!r} is not known.", OTHER)
    group, bits = whole(declared, "group_size", where), whole(declared, "bits", where)
    overrides = []
    for module, entry in declared.items():
        if isinstance(entry, dict):
            own = entry.get("mode", "affine")
            if own not in MODES:
                raise CheckpointError(f"{where}: the quantisation {own!r} is not known.", OTHER)
            numbers = whole(entry, "group_size", where, group), whole(entry, "bits", where, bits)
            if text_name(module) and own == "affine":
                overrides.append((text_name(module), *numbers))
    return Quantization(group_size=group, bits=bits, overrides=tuple(overrides))


def _completed(quantization: Quantization, stored: Mapping[str, LazyTensor], widths: Mapping[str, int]) -> Quantization:
    """With the modules that have another form than the config declares: it is in their shapes, and scales of 8 bits
    without biases are MXFP4's."""
    mxfp4 = [
        module
        for module in widths
        if f"{module}.biases" not in stored and getattr(stored.get(f"{module}.scales"), "dtype", "") == "U8"
    ]
    overrides = {path: (group, bits) for path, group, bits in quantization.overrides}
    for module, columns in widths.items():
        weight, scales = stored.get(f"{module}.weight"), stored.get(f"{module}.scales")
        if weight is None or scales is None or module in overrides or module in mxfp4:
            continue
        if min(len(weight.shape), len(scales.shape)) < 2 or 0 in (*weight.shape, *scales.shape):
            continue
        form = columns // scales.shape[-1], weight.shape[-1] * 32 // columns
        if form != group_and_bits(quantization, module):
            overrides[module] = form
    pairs = tuple((path, *form) for path, form in overrides.items() if path not in mxfp4)
    return replace(quantization, overrides=pairs, mxfp4=tuple(mxfp4))


def _words(path: Path) -> dict[str, Any]:
    file = path / TOKENIZER_CONFIG
    return read_json(file) if file.is_file() else {}


def _tokenizer(path: Path, vocab_size: int) -> bytes:
    file = path / TOKENIZER
    if not file.exists():
        raise BundleError(str(file), "is missing", "Convert the tokenizer to tokenizer.json first.")
    try:
        data = read_small(file, TOKENIZER_BYTES)
    except OSError as error:
        raise BundleError(str(file), f"cannot be read ({error.strerror})", "Download the file again.") from error
    size = tokenizer_size(file, data)
    if size > vocab_size:
        raise CheckpointError(f"{file} has {size} tokens, the model knows {vocab_size}.", "Use the model's tokenizer.")
    return data


def _chat_template(path: Path, words: Mapping[str, Any]) -> str:
    """The file beside the weights, else the string in tokenizer_config.json; of several, the one called default."""
    file = path / CHAT_TEMPLATE
    if file.is_file():
        try:
            return read_small(file, TEMPLATE_BYTES).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise BundleError(str(file), f"cannot be read ({error})", "Download the file again.") from error
    template = words.get("chat_template")
    older = path / "chat_template.json"
    if template is None and older.is_file():
        template = read_json(older).get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else ""


def _text(token: Any) -> str:
    """A token of tokenizer_config.json, which may be an object with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _bos_id(data: bytes, words: Mapping[str, Any]) -> int:
    """The id that the tokenizer itself puts first, else the one that its config asks for; -1: none."""
    tokenizer = Tokenizer.from_str(data.decode())
    bos = tokenizer.token_to_id(_text(words.get("bos_token")))
    if bos is None:
        return -1
    adds = words.get("add_bos_token")
    if adds is None:
        adds = tokenizer.encode("").ids[:1] == [bos]
    return int(bos) if adds else -1


def _stop_ids(
    path: Path, configs: Sequence[Mapping[str, Any]], words: Mapping[str, Any], data: bytes
) -> tuple[int, ...]:
    generation = path / "generation_config.json"
    sources = [read_json(generation) if generation.is_file() else {}, *configs]
    declared: list[int] = []
    for source in sources:
        ends = source.get("eos_token_id")
        declared += [i for i in (ends if isinstance(ends, list) else [ends]) if type(i) is int]
    controls = {t["content"]: t["id"] for t in json.loads(data).get("added_tokens") or [] if t.get("special")}
    end = controls.get(_text(words.get("eos_token")))
    return stop_ids([*declared, *([] if end is None else [end])], controls)


def _unchanged(weights: HfWeights, tensors: Mapping[str, LazyTensor]) -> bool:
    """Whether the files hold just these tensors; one that is made of others always has another name."""
    return weights.names == tensors.keys() and all(file.suffix == ".safetensors" for file in weights.files)


def _files(path: Path, weights: Sequence[Path]) -> tuple[Path, ...]:
    names = (CONFIG, INDEX, TOKENIZER, TOKENIZER_CONFIG, CHAT_TEMPLATE, "generation_config.json")
    small = [path / name for name in names if (path / name).is_file()]
    return (*small, *sorted(weights))
