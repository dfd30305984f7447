"""Small GGUF files of the architecture llama, written with the gguf package, and the values that are in them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf.quants import dequantize, quantize

LAYERS, WIDTH, INNER, HEADS, KV_HEADS, HEAD_DIM = 2, 64, 96, 4, 2, 16
TOKENS = [
    "<unk>",
    "<s>",
    "</s>",
    "a",
    "b",
    "Ġ",
    "ab",
    "Ġa",
    *"0123456789",
    "12",
    *(chr(c) for c in range(0x100, 0x10D)),
]
TYPES = [3, 3, 3, *[1] * 29]
MERGES = ["a b", "Ġ a", "1 2"]
Kind = gguf.GGMLQuantizationType


def tiny_gguf(
    path: Path,
    *,
    linears: str = "Q4_1",
    embedding: str = "Q8_0",
    tied: bool = True,
    architecture: str = "llama",
    keys: Mapping[str, Any] | None = None,
    extra: Mapping[str, npt.NDArray[Any]] | None = None,
    layer_types: Mapping[str, str] | None = None,
) -> dict[str, npt.NDArray[np.float32]]:
    """Write a model of 2 layers and 32 tokens; return the float32 values of its tensors by GGUF name.

    `keys` replace metadata (None removes a key); `layer_types` name the type of single tensors.
    """
    rng = np.random.default_rng(7)
    assert len(TOKENS) == 32
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (_metadata(architecture) | dict(keys or {})).items():
        _add(writer, key, value)
    shapes = {"token_embd.weight": (32, WIDTH), "output_norm.weight": (WIDTH,)}
    for index in range(LAYERS):
        layer = f"blk.{index}."
        shapes |= {f"{layer}attn_{n}.weight": (HEADS * HEAD_DIM, WIDTH) for n in ("q", "output")}
        shapes |= {f"{layer}attn_{n}.weight": (KV_HEADS * HEAD_DIM, WIDTH) for n in ("k", "v")}
        shapes |= {f"{layer}ffn_{n}.weight": (INNER, WIDTH) for n in ("gate", "up")}
        shapes |= {f"{layer}ffn_down.weight": (WIDTH, INNER)}
        shapes |= {f"{layer}{n}_norm.weight": (WIDTH,) for n in ("attn", "ffn")}
    if not tied:
        shapes["output.weight"] = (32, WIDTH)
    values: dict[str, npt.NDArray[np.float32]] = {}
    for name, shape in shapes.items():
        kind = "F32" if len(shape) == 1 else embedding if name == "token_embd.weight" else linears
        kind = (layer_types or {}).get(name, kind)
        data = quantize(rng.standard_normal(shape).astype(np.float32), Kind[kind])
        values[name] = dequantize(data, Kind[kind])
        writer.add_tensor(name, data, raw_dtype=Kind[kind])
    for name, array in (extra or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values


def _metadata(architecture: str) -> dict[str, Any]:
    return {
        f"{architecture}.block_count": LAYERS,
        f"{architecture}.embedding_length": WIDTH,
        f"{architecture}.feed_forward_length": INNER,
        f"{architecture}.attention.head_count": HEADS,
        f"{architecture}.attention.head_count_kv": KV_HEADS,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{architecture}.context_length": 128,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": TYPES,
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif value is not None:
        writer.add_array(key, value)
