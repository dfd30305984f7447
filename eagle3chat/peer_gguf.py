"""A bundle's draft as a GGUF file that llama.cpp reads, and the type of a GGUF file.

Format: llama.cpp's architecture `eagle3` as its own converter writes it (metadata and tensor names; rows of q and k in
GGUF's order of rotary halves; `d2t` holds target ids). The vocabulary is copied from the target's GGUF. Matrices in
bfloat16 stay as they are, others are written as float16. Knows bundles and the gguf package.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from eagle3chat.engine.affine import dequantized
from eagle3chat.engine.bundle import DRAFT, Bundle, read_tensors
from eagle3chat.engine.config import DraftConfig, Manifest, Quantization
from eagle3chat.engine.errors import SettingError
from eagle3chat.engine.gguf_source import row_order
from eagle3chat.engine.layout import DRAFT_EMBEDDING, TARGET_IDS, draft_tensors, group_and_bits
from eagle3chat.engine.tensor_file import TensorInfo

if TYPE_CHECKING:
    from gguf import GGUFReader, GGUFWriter

Array = npt.NDArray[Any]
NAMES = {
    "fc": "fc",
    "norm": "output_norm",
    "lm_head": "output",
    "input_norm": "enc.output_norm",
    "embed_tokens": "token_embd",
    "layers.0.input_layernorm": "blk.0.attn_norm",
    "layers.0.hidden_norm": "blk.0.attn_norm_2",
    "layers.0.post_attention_layernorm": "blk.0.ffn_norm",
    "layers.0.self_attn.q_proj": "blk.0.attn_q",
    "layers.0.self_attn.k_proj": "blk.0.attn_k",
    "layers.0.self_attn.v_proj": "blk.0.attn_v",
    "layers.0.self_attn.o_proj": "blk.0.attn_output",
    "layers.0.mlp.gate_proj": "blk.0.ffn_gate",
    "layers.0.mlp.up_proj": "blk.0.ffn_up",
    "layers.0.mlp.down_proj": "blk.0.ffn_down",
}
TAPS = 3  # llama.cpp takes no other number
FIX = "Name one that its own converter made with --peer-draft FILE.gguf, or measure --chains 0 alone."


def write_draft(bundle: Bundle, vocabulary: Path, file: Path) -> Path:
    """Write the draft of a bundle; the file.

    Args:
        vocabulary: A GGUF of the target.

    Raises:
        SettingError: llama.cpp has no such draft, or the target's file cannot be read.
    """
    from gguf import GGUFWriter, LlamaFileType

    draft = bundle.manifest.draft
    assert draft is not None, "asked for where there is a draft"
    if problem := unknown_part(draft):
        raise SettingError(f"llama.cpp's EAGLE-3 drafts have no {problem}.", FIX)
    reader = _opened(vocabulary)
    writer = GGUFWriter(file, "eagle3")
    target, stored = bundle.manifest.target, read_tensors(bundle.path / DRAFT)
    as_it_is = bundle.manifest.draft_quantization is None and stored["fc.weight"].dtype == "BF16"
    kind = LlamaFileType.MOSTLY_BF16 if as_it_is else LlamaFileType.MOSTLY_F16
    _write_config(writer, draft, target.max_position, target.vocab_size)
    writer.add_file_type(kind)
    _copy_vocabulary(reader, writer)
    _write_tensors(writer, stored, bundle.manifest)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def unknown_part(draft: DraftConfig) -> str:
    """What a draft has that llama.cpp's have not; empty: nothing."""
    parts = {
        "more than one layer": draft.num_layers != 1,
        f"{len(draft.taps)} taps": len(draft.taps) != TAPS,
        "norms of taps": draft.fc_norm,
        "normed output fed back": draft.norm_output,
        "norms of queries and keys": draft.qk_norm,
        "biases": draft.attention_bias or draft.output_bias or draft.mlp_bias or draft.fc_bias,
        f"rotary positions of the kind {draft.rope.kind} that can be written here": draft.rope.kind != "default",
    }
    return next((name for name, is_so in parts.items() if is_so), "")


def file_type(file: Path) -> str:
    """The type that most of a GGUF's weights have, such as Q4_0.

    Raises:
        SettingError: It is no GGUF.
    """
    from gguf import LlamaFileType

    field = _opened(file).fields.get("general.file_type")
    try:
        name = LlamaFileType(int(field.contents())).name if field is not None else ""
    except ValueError:
        name = ""
    return name.removeprefix("MOSTLY_").removeprefix("ALL_") or "of an unknown type"


def _opened(file: Path) -> GGUFReader:
    from gguf import GGUFReader

    try:
        return GGUFReader(file)
    except (OSError, ValueError, IndexError, KeyError) as error:
        raise SettingError(f"{file} is not a GGUF file, or is cut off.", "Check --peer-target.") from error


def _write_config(writer: GGUFWriter, draft: DraftConfig, positions: int, vocab_size: int) -> None:
    writer.add_array("eagle3.target_layers", list(draft.taps))
    writer.add_uint32("eagle3.target_hidden_size", draft.target_hidden_size)
    writer.add_bool("eagle3.norm_before_residual", draft.norm_before_residual)
    writer.add_bool("eagle3.norm_before_fc", draft.norm_before_fc)
    writer.add_block_count(1)
    writer.add_context_length(positions)
    writer.add_embedding_length(draft.hidden_size)
    writer.add_feed_forward_length(draft.intermediate_size)
    writer.add_head_count(draft.num_heads)
    writer.add_head_count_kv(draft.num_kv_heads)
    writer.add_key_length(draft.head_dim)
    writer.add_value_length(draft.head_dim)
    writer.add_rope_dimension_count(draft.head_dim)
    writer.add_rope_freq_base(draft.rope.theta)
    writer.add_layer_norm_rms_eps(draft.rms_eps)
    writer.add_vocab_size(vocab_size)


def _copy_vocabulary(reader: GGUFReader, writer: GGUFWriter) -> None:
    from gguf import GGUFValueType

    for name, field in reader.fields.items():
        if not name.startswith("tokenizer."):
            continue
        kind, value = field.types[0], field.contents()
        inner = field.types[1] if kind is GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, kind, sub_type=inner)


def _write_tensors(writer: GGUFWriter, stored: Mapping[str, TensorInfo], manifest: Manifest) -> None:
    from gguf import GGMLQuantizationType

    draft = manifest.draft
    assert draft is not None, "as above"
    names = [name for name in draft_tensors(draft) if name != TARGET_IDS]
    if draft.own_embedding:
        names.append(DRAFT_EMBEDDING)
    for name in names:
        own, info = f"{NAMES[name.removesuffix('.weight')]}.weight", stored[name]
        order = _order(name, draft)
        if info.dtype == "BF16" and len(info.shape) == 2:
            octets = np.frombuffer(info.read(), np.uint8).reshape(info.shape[0], -1)
            writer.add_tensor(own, np.ascontiguousarray(octets[order]), raw_dtype=GGMLQuantizationType.BF16)
            continue
        array = _array(stored, name, manifest.draft_quantization)
        wide = np.float32 if array.ndim == 1 else np.float16  # norms stay exact
        writer.add_tensor(own, np.ascontiguousarray(array[order].astype(wide)))
    writer.add_tensor("d2t", np.frombuffer(stored[TARGET_IDS].read(), np.int64))


def _order(name: str, draft: DraftConfig) -> Any:
    """Which of our rows each row of GGUF's matrix is."""
    for part, heads in (("q_proj", draft.num_heads), ("k_proj", draft.num_kv_heads)):
        if name.endswith(f"{part}.weight"):
            return np.argsort(row_order(heads, draft.head_dim))
    return slice(None)


def _array(stored: Mapping[str, TensorInfo], name: str, quantization: Quantization | None) -> Array:
    """A tensor as float32."""
    module = name.removesuffix(".weight")
    if f"{module}.scales" not in stored:
        return _dense(stored[name])
    assert quantization is not None, "the bundle passed the door"
    _, bits = group_and_bits(quantization, module)
    words = np.frombuffer(stored[name].read(), np.uint32).reshape(stored[name].shape)
    return dequantized(words, _dense(stored[f"{module}.scales"]), _dense(stored[f"{module}.biases"]), bits)


def _dense(info: TensorInfo) -> Array:
    data = info.read()
    if info.dtype == "BF16":
        wide = np.frombuffer(data, np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32).reshape(info.shape)
    kinds = {"F32": np.float32, "F16": np.float16}
    return np.frombuffer(data, kinds[info.dtype]).astype(np.float32).reshape(info.shape)
