"""A tiny Hugging Face directory rewritten as other programs quantise it, and the values that are then in it.

The values are reckoned here from the codes, in float64, by each format's own formula; nothing of the package's readers
is used. Layouts: torchao 0.15 and later (ExecuTorch's HQQ-INT4), AutoAWQ "gemm", GPTQ, compressed-tensors.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file
from tiny import tiny_bundle

from eagle3chat.engine.hf_config import target_config_json
from eagle3chat.engine.manifest import read_manifest
from eagle3chat.engine.tensor_file import LazyTensor, write_tensors

Array = npt.NDArray[Any]
Truth = dict[str, Array]
"""Dense values by the tensor's name in a bundle."""


def hf_directory(tmp_path: Path, **options: Any) -> Path:
    """The target of a tiny bundle as a Hugging Face directory."""
    bundle = tiny_bundle(tmp_path / "made", draft=False, **options)
    manifest = read_manifest(bundle)
    path = tmp_path / "Tiny-Hf"
    shutil.copytree(bundle / "target", path)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(bundle / name, path / name)
    values = target_config_json(manifest.target, manifest.quantization)
    (path / "config.json").write_text(json.dumps(values))
    return path


def bf16(values: Array) -> Array:
    """Rounded down to what bfloat16 holds, as float32."""
    return (values.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)


def _bf16_tensor(name: str, values: Array) -> LazyTensor:
    halves = (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype("<u2")
    return LazyTensor(name, "BF16", values.shape, halves.tobytes)


def _plain(name: str, values: Array) -> LazyTensor:
    dtype = {"uint8": "U8", "int8": "I8", "int32": "I32", "int64": "I64", "float32": "F32", "float16": "F16"}
    return LazyTensor(name, dtype[values.dtype.name], values.shape, np.ascontiguousarray(values).tobytes)


def as_hqq(path: Path, prefix: str = "model.", shards: int = 1, group: int = 32) -> Truth:
    """Rewrite as ExecuTorch's HQQ-INT4: 4 bits with fractional zeros, the embedding and layer 0's v and down 8 bits."""
    rng = np.random.default_rng(3)
    truth: Truth = {}
    tensors: list[LazyTensor] = []
    metadata: dict[str, str] = {}
    for name, dense in load_file(path / "model.safetensors").items():
        logical = name.removeprefix(prefix)
        module, _, leaf = logical.rpartition(".")
        part = f"{module}._{leaf}_" if module else f"_{leaf}_"
        if dense.ndim == 1 or "vision" in name:
            kept = bf16(dense)
            tensors.append(_bf16_tensor(logical, kept))
            metadata[logical] = json.dumps({"_type": "Tensor"})
            truth[name] = kept
            continue
        rows, columns = dense.shape
        eight = "embed_tokens" in name or any(f"layers.0.{at}" in name for at in ("self_attn.v", "mlp.down"))
        size = columns if "embed_tokens" in name else group
        if eight:
            grouped = dense.reshape(rows, -1, size)
            scale = bf16(np.maximum(np.abs(grouped).max(-1) / 126.0, 1e-4))
            codes = np.rint(dense / np.repeat(scale, size, 1)).clip(-127, 127).astype(np.int8)
            zero = np.zeros(scale.shape, np.int8)
            metadata[logical] = json.dumps(
                {
                    "_type": "IntxUnpackedToInt8Tensor",
                    "_data": {
                        "target_dtype": {"_type": "torch.dtype", "_data": "int8"},
                        "block_size": [1, size],
                        "dtype": {"_type": "torch.dtype", "_data": "bfloat16"},
                        "activation_quantization": None,
                    },
                    "_tensor_data_names": ["qdata", "scale", "zero_point"],
                }
            )
            stored = [_plain(f"{part}qdata", codes), _bf16_tensor(f"{part}scale", scale)]
            tensors += [*stored, _plain(f"{part}zero_point", zero)]
        else:
            grouped = dense.reshape(rows, -1, size)
            scale = bf16(np.maximum((grouped.max(-1) - grouped.min(-1)) / 14.5, 1e-4))
            zero = bf16(-grouped.min(-1) / scale + rng.uniform(0.0, 0.5, scale.shape))  # a fraction
            shifted = np.rint(dense / np.repeat(scale, size, 1) + np.repeat(zero, size, 1))
            codes = shifted.clip(0, 15).astype(np.uint8)
            metadata[logical] = json.dumps(
                {
                    "_type": "Int4Tensor",
                    "_data": {
                        "activation_dtype": {"_type": "torch.dtype", "_data": "bfloat16"},
                        "block_size": [1, size],
                        "shape": [rows, columns],
                    },
                    "_tensor_data_names": ["qdata", "scale", "zero_point"],
                }
            )
            tensors.append(_plain(f"{part}qdata", codes[:, 0::2] | codes[:, 1::2] << 4))
            tensors += [_bf16_tensor(f"{part}scale", scale.T), _bf16_tensor(f"{part}zero_point", zero.T)]
        truth[name] = _spread(scale, size) * (codes.astype(np.float64) - _spread(zero, size))
    _write_hqq(path, tensors[::-1], metadata, shards)
    config = json.loads((path / "config.json").read_text())
    inner = config.get("text_config", config)
    inner["tie_word_embeddings"] = config["tie_word_embeddings"] = True  # stale, as in the published file
    (path / "config.json").write_text(json.dumps(config))
    return truth


def _write_hqq(path: Path, tensors: list[LazyTensor], metadata: dict[str, str], shards: int) -> None:
    """Parts of one weight may lie in different files."""
    (path / "model.safetensors").unlink()
    everything = {**metadata, "tensor_names": json.dumps(list(metadata)), "format": "pt"}
    if shards == 1:
        write_tensors(path / "model.safetensors", tensors, everything)
        return
    index: dict[str, str] = {}
    names = list(metadata)
    for shard in range(shards):
        file, mine = f"model-{shard}.safetensors", tensors[shard::shards]
        some = {name: metadata[name] for name in names[shard::shards]}
        write_tensors(path / file, mine, {**some, "tensor_names": json.dumps(list(some))})
        index |= {tensor.name: file for tensor in mine}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def _spread(values: Array, group: int) -> Array:
    return np.repeat(values.astype(np.float64), group, axis=1)


Rewrite = Callable[[str, Array, np.random.Generator], tuple[dict[str, Array], Array]]


def _rewritten(path: Path, settings: dict[str, Any], rewrite: Rewrite) -> Truth:
    """Linears of the layers become what `rewrite` (module, dense, rng) -> (parts, values) makes of them."""
    rng = np.random.default_rng(5)
    tensors, truth = {}, {}
    for name, dense in load_file(path / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            tensors[name] = truth[name] = dense
            continue
        module = name.removesuffix(".weight")
        parts, truth[name] = rewrite(module, dense, rng)
        tensors |= {f"{module}.{part}": np.ascontiguousarray(value) for part, value in parts.items()}
    save_file(tensors, path / "model.safetensors")
    config = json.loads((path / "config.json").read_text()) | {"quantization_config": settings}
    (path / "config.json").write_text(json.dumps(config))
    return truth


def _along(codes: Array, bits: int, order: tuple[int, ...] | None = None) -> Array:
    """int32 words of codes [R, C], `order[i]` the place of column i of each word."""
    count = 32 // bits
    words = np.zeros((codes.shape[0], codes.shape[1] // count), np.uint32)
    for column in range(count):
        place = column if order is None else order[column]
        words |= codes[:, column::count].astype(np.uint32) << np.uint32(bits * place)
    return words.view(np.int32)


def _numbers(dense: Array, group: int, bits: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """Codes [N, K], float16 scales and zero points [N, K/g]."""
    codes = rng.integers(0, 2**bits, dense.shape, np.uint8)
    groups = (len(dense), dense.shape[1] // group)
    scales = (rng.uniform(0.5, 1.0, groups) * dense.std() / 2 ** (bits - 2)).astype(np.float16)
    return codes, scales, rng.integers(1, 2**bits, groups, np.uint8)


def as_awq(path: Path, group: int = 32, **settings: Any) -> Truth:
    """Rewrite as AutoAWQ's gemm layout."""

    def rewrite(module: str, dense: Array, rng: np.random.Generator) -> tuple[dict[str, Array], Array]:
        codes, scales, zeros = _numbers(dense, group, 4, rng)
        order = (0, 4, 1, 5, 2, 6, 3, 7)
        parts = {"qweight": _along(codes.T, 4, order), "qzeros": _along(zeros.T, 4, order), "scales": scales.T}
        return parts, _spread(scales, group) * (codes.astype(np.float64) - _spread(zeros, group))

    quant = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True} | settings
    return _rewritten(path, quant, rewrite)


def as_gptq(
    path: Path, group: int = 32, bits: int = 4, v2: bool = False, act_order: bool = False, **settings: Any
) -> Truth:
    """Rewrite as GPTQ."""

    def rewrite(module: str, dense: Array, rng: np.random.Generator) -> tuple[dict[str, Array], Array]:
        codes, scales, zeros = _numbers(dense, group, bits, rng)
        index = np.arange(dense.shape[1], dtype=np.int32) // group
        if act_order:
            index = rng.permutation(index).astype(np.int32)
        behind = zeros if v2 else zeros - np.uint8(1)
        parts = {
            "qweight": _along(np.ascontiguousarray(codes), bits).T,
            "qzeros": _along(np.ascontiguousarray(behind.T), bits),
            "scales": scales.T,
            "g_idx": index,
        }
        return parts, scales.astype(np.float64)[:, index] * (codes.astype(np.float64) - zeros[:, index])

    quant: dict[str, Any] = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": act_order}
    return _rewritten(path, quant | ({"checkpoint_format": "gptq_v2"} if v2 else {}) | settings, rewrite)


def as_compressed(path: Path, group: int = 32, bits: int = 4, symmetric: bool = True, **settings: Any) -> Truth:
    """Rewrite as compressed-tensors "pack-quantized"; group 0: one scale a row."""

    def rewrite(module: str, dense: Array, rng: np.random.Generator) -> tuple[dict[str, Array], Array]:
        size = group or dense.shape[1]
        codes, scales, zeros = _numbers(dense, size, bits, rng)
        parts = {
            "weight_packed": _along(codes, bits),
            "weight_scale": scales,
            "weight_shape": np.array(dense.shape, np.int64),
        }
        middle: Array = np.full(scales.shape, 2 ** (bits - 1), np.uint8)
        if not symmetric:
            middle = zeros
            parts["weight_zero_point"] = _along(np.ascontiguousarray(zeros.T), bits).T
        return parts, _spread(scales, size) * (codes.astype(np.float64) - _spread(middle, size))

    quant = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"weights": {"num_bits": bits, "symmetric": symmetric}}},
        "ignore": ["lm_head"],
    }
    return _rewritten(path, quant | settings, rewrite)


def drop_part(path: Path, name: str) -> None:
    """Take a tensor out of the directory's only file."""
    tensors = load_file(path / "model.safetensors")
    del tensors[name]
    save_file(tensors, path / "model.safetensors")
