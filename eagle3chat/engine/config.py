"""The numbers that describe a target, a draft and a bundle. Values only: no files, no tensors.

`TargetConfig` is one decoder with flags: a family is a set of flag values, not a class.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

FORMAT_VERSION = 1
RopeKind = Literal["default", "llama3", "linear", "yarn", "proportional"]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions. `factor` and the rest are used by the kinds that need them."""

    kind: RopeKind = "default"
    theta: float = 10000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 0


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """A decoder-only target. Names follow Hugging Face's config.json where it has one."""

    family: str  # "llama", "qwen3", ...
    vocab_size: int  # V
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_eps: float
    rope: Rope
    max_position: int
    tie_embeddings: bool
    activation: Literal["silu", "gelu_tanh"] = "silu"
    qk_norm: bool = False  # RMS norm of q and k by head, before rope (Qwen3, Gemma)
    attention_bias: bool = False  # biases of q, k, v (Qwen2)
    embed_scale: float = 1.0  # Gemma: sqrt(hidden_size)
    logit_softcap: float = 0.0  # 0: none


@dataclass(frozen=True, slots=True)
class Quantization:
    """MLX affine: w = scales * u + biases, groups along K. `overrides` by module path."""

    group_size: int = 32
    bits: int = 4
    overrides: tuple[tuple[str, int, int], ...] = ()  # (module path, group_size, bits)


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """An EAGLE-3 head in canonical form."""

    hidden_size: int  # H
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_eps: float
    rope: Rope
    draft_vocab_size: int  # Vd
    target_hidden_size: int
    taps: tuple[int, ...]  # boundaries: 0 = embedding output, b = after b layers; ascending
    own_embedding: bool = False  # False: the target's raw rows
    own_head: bool = True
    norm_before_residual: bool = False
    norm_output: bool = False  # feed the normed output back (EAGLE 3.1)
    fc_norm: bool = False
    norm_before_fc: bool = False
    qk_norm: bool = False
    attention_bias: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """Where a part of a bundle came from, to notice that it changed."""

    role: str  # "target", "draft"
    name: str  # a file or directory name, without the rest of its path
    size: int  # bytes
    sha256: str  # of the file's contents; of a directory: of its files' names, sizes and hashes in order


@dataclass(frozen=True, slots=True)
class Manifest:
    """bundle.json."""

    name: str  # of the target, as shown
    draft_name: str  # empty: no draft
    family: str
    target: TargetConfig
    draft: DraftConfig | None
    quantization: Quantization | None  # of the target
    default_chain: int
    max_chain: int
    min_prefill: int
    max_prefill: int  # chunk
    max_seq_len: int  # the longest context that is offered
    template: str  # built-in name, or "model" for the bundle's own chat_template.jinja
    bos_id: int  # -1: none is prepended
    stop_ids: tuple[int, ...]
    tokenizer_sha256: str
    sources: tuple[Source, ...]
    command: str  # that made the bundle
    created: str  # ISO 8601, UTC
    version: str  # of eagle3chat
    format_version: int = FORMAT_VERSION
    extra: dict[str, object] = field(default_factory=dict)  # keys of a newer writer, kept
