"""The numbers that describe a target, a draft and a bundle. Values only: no files, no tensors.

`TargetConfig` is one decoder with flags: a family is a set of flag values, not a class.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

FORMAT_VERSION = 1
RopeKind = Literal["default", "llama3", "linear", "yarn", "proportional"]
LayerType = Literal["full", "sliding"]
ExpertsKind = Literal["qwen3", "gpt_oss", "gemma4"]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions. `factor` and the rest are used by the kinds that need them.

    Kinds: "default"; "linear"; "llama3" (low_freq_factor, high_freq_factor, original_max_position); "yarn" (the same
    position, beta_fast, beta_slow, attention_factor, truncate); "proportional" (`partial` of the columns turn, at
    speeds counted over the whole head: Gemma 4).
    """

    kind: RopeKind = "default"
    theta: float = 10000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 0
    partial: float = 1.0  # share of a head's columns that turn
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0  # yarn: cosines and sines are multiplied by this
    truncate: bool = True  # yarn: the ramp's ends are rounded to whole columns


@dataclass(frozen=True, slots=True)
class AttentionKind:
    """What the attention of one kind of layer has."""

    num_kv_heads: int
    head_dim: int
    rope: Rope
    window: int = 0  # a position sees itself and window - 1 before it; 0: all before it
    key_is_value: bool = False  # no v_proj: the value is the key's projection, before its norm and rotation


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in the place of a layer's MLP (gemma4: beside it)."""

    kind: ExpertsKind
    count: int
    per_token: int
    intermediate_size: int
    normalize: bool = True  # the weights of a token's experts sum to 1
    limit: float = 0.0  # gpt-oss clamps its gate and up to this; 0: does not


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """A decoder-only target. Names follow Hugging Face's config.json where it has one.

    `num_kv_heads`, `head_dim`, `rope` and `key_is_value` are those of full attention; `sliding` has those of sliding
    layers. See `kind` and `cache_layer`.
    """

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
    layer_types: tuple[LayerType, ...] = ()  # of each layer; empty: all full
    sliding: AttentionKind | None = None
    key_is_value: bool = False  # see AttentionKind
    attention_scale: float = 0.0  # of the scores; 0: 1 / sqrt(head_dim)
    norm_offset: float = 0.0  # 1: norms multiply by 1 + weight (Gemma 3)
    sandwich_norms: bool = False  # attention and MLP each have a norm before and one after (Gemma)
    value_norm: bool = False  # values are normed by head, without a weight (Gemma 4)
    output_bias: bool = False  # a bias of o_proj (gpt-oss)
    sinks: bool = False  # each head has one more score, which takes mass and gives nothing (gpt-oss)
    shared_kv_layers: int = 0  # the last so many layers read the cache of the last own layer of their type (Gemma 4 E)
    shared_intermediate_size: int = 0  # of those layers' MLPs; 0: intermediate_size
    layer_input_size: int = 0  # width of a second embedding, one slice for each layer (Gemma 4 E); 0: none
    layer_input_vocab: int = 0  # its rows
    layer_scalar: bool = False  # a layer's output is multiplied by a number of its own (Gemma 4)
    experts: Experts | None = None

    def kind(self, layer: int) -> AttentionKind:
        """What a layer's attention has."""
        if self.sliding is not None and self.layer_types and self.layer_types[layer] == "sliding":
            return self.sliding
        return AttentionKind(self.num_kv_heads, self.head_dim, self.rope, 0, self.key_is_value)

    @property
    def dense_mlp(self) -> bool:
        """Whether layers have an MLP that is not an expert."""
        return self.experts is None or self.experts.kind == "gemma4"

    def mlp_size(self, layer: int) -> int:
        """How wide a layer's MLP is inside."""
        shared = layer >= self.num_layers - self.shared_kv_layers
        return self.shared_intermediate_size if shared and self.shared_intermediate_size else self.intermediate_size

    def cache_layer(self, layer: int) -> int:
        """The layer whose keys and values a layer reads: its own, or with shared ones the last own of its type."""
        own = self.num_layers - self.shared_kv_layers
        if layer < own:
            return layer
        types = self.layer_types or ("full",) * self.num_layers
        return max(index for index in range(own) if types[index] == types[layer])


@dataclass(frozen=True, slots=True)
class Quantization:
    """MLX affine: w = scales * u + biases, groups along K; `overrides` by module path. Or MXFP4, see layout.py."""

    group_size: int = 32
    bits: int = 4
    overrides: tuple[tuple[str, int, int], ...] = ()  # (module path, group_size, bits)
    mxfp4: tuple[str, ...] = ()  # module paths of this other form


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
    attention_bias: bool = False  # of q, k, v
    output_bias: bool = False  # of o_proj
    mlp_bias: bool = False
    fc_bias: bool = False
    num_layers: int = 1  # those after the first are ordinary layers of width H: input_layernorm, attention, MLP

    @property
    def tap_width(self) -> int:
        """Width of the taps side by side."""
        return len(self.taps) * self.target_hidden_size


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
    draft_quantization: Quantization | None = None
    format_version: int = FORMAT_VERSION
    extra: dict[str, object] = field(default_factory=dict)  # keys of a newer writer, kept
