"""Which tensors a bundle's target and draft consist of: names, shapes and types, from the configs alone.

Target names are Hugging Face's; a quantised module X has X.weight U32 [N, K*bits/32], X.scales and X.biases
[N, K/g] (MLX affine, first column in the lowest bits), or in MXFP4 X.weight U32 [N, K/8] and X.scales U8 [N, K/32]:
codes are 4-bit floats (E2M1), scales 2 ** (s - 127) (OCP Microscaling Formats 1.0). Stacks of experts have [E, N, ..].
Draft names are canonical (`draft_tensors`), its matrices may be MLX affine.
Knows no files: it judges (dtype, shape) by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from eagle3chat.engine.config import DraftConfig, Quantization, TargetConfig
from eagle3chat.engine.expert_layout import expert_routers, expert_stacks, expert_vectors

Shape = tuple[int, ...]
DENSE = ("F32", "F16", "BF16")
BITS = (2, 3, 4, 5, 6, 8)
GROUPS = (32, 64, 128)
MXFP4_GROUP, MXFP4_BITS = 32, 4
TARGET_IDS = "target_ids"
DRAFT_EMBEDDING = "embed_tokens.weight"


class Described(Protocol):
    """Anything with a type and a shape."""

    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> Shape: ...


def target_modules(config: TargetConfig) -> Iterator[tuple[str, int, int]]:
    """Module path, N and K of every matrix of a target, without its experts'; each may be quantised."""
    width, extra = config.hidden_size, config.layer_input_size
    yield "model.embed_tokens", config.vocab_size, width
    if extra:
        yield "model.embed_tokens_per_layer", config.layer_input_vocab, config.num_layers * extra
        yield "model.per_layer_model_projection", config.num_layers * extra, width
    for index in range(config.num_layers):
        layer, kind, inner = f"model.layers.{index}", config.kind(index), config.mlp_size(index)
        queries, keys = config.num_heads * kind.head_dim, kind.num_kv_heads * kind.head_dim
        yield f"{layer}.self_attn.q_proj", queries, width
        if config.cache_layer(index) == index:
            yield f"{layer}.self_attn.k_proj", keys, width
            if not kind.key_is_value:
                yield f"{layer}.self_attn.v_proj", keys, width
        yield f"{layer}.self_attn.o_proj", width, queries
        if config.dense_mlp:
            yield f"{layer}.mlp.gate_proj", inner, width
            yield f"{layer}.mlp.up_proj", inner, width
            yield f"{layer}.mlp.down_proj", width, inner
        if extra:
            yield f"{layer}.per_layer_input_gate", extra, width
            yield f"{layer}.per_layer_projection", width, extra
    yield from expert_routers(config)
    if not config.tie_embeddings:
        yield "lm_head", config.vocab_size, width


def quantizable(config: TargetConfig) -> Iterator[tuple[str, Shape]]:
    """Module path and dense shape of everything that may be quantised: matrices, and stacks of them."""
    for module, rows, columns in target_modules(config):
        yield module, (rows, columns)
    for module, count, rows, columns in expert_stacks(config):
        yield module, (count, rows, columns)


def target_vectors(config: TargetConfig) -> Iterator[tuple[str, Shape]]:
    """Name and shape of every tensor of a target that is never quantised."""
    width = config.hidden_size
    norms = ["input_layernorm", "post_attention_layernorm"]
    if config.sandwich_norms:
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    if config.layer_input_size:
        norms.append("post_per_layer_input_norm")
        yield "model.per_layer_projection_norm.weight", (config.layer_input_size,)
    for index in range(config.num_layers):
        layer = f"model.layers.{index}"
        for norm in norms:
            yield f"{layer}.{norm}.weight", (width,)
        if config.layer_scalar:
            yield f"{layer}.layer_scalar", (1,)
        yield from _attention_vectors(config, index, f"{layer}.self_attn")
    yield from expert_vectors(config)
    yield "model.norm.weight", (width,)


def _attention_vectors(config: TargetConfig, index: int, attention: str) -> Iterator[tuple[str, Shape]]:
    kind, own = config.kind(index), config.cache_layer(index) == index
    if config.qk_norm:
        yield f"{attention}.q_norm.weight", (kind.head_dim,)
        if own:
            yield f"{attention}.k_norm.weight", (kind.head_dim,)
    if config.attention_bias:
        yield f"{attention}.q_proj.bias", (config.num_heads * kind.head_dim,)
        for name in ("k_proj", "v_proj") if own else ():
            yield f"{attention}.{name}.bias", (kind.num_kv_heads * kind.head_dim,)
    if config.output_bias:
        yield f"{attention}.o_proj.bias", (config.hidden_size,)
    if config.sinks:
        yield f"{attention}.sinks", (config.num_heads,)


def draft_tensors(config: DraftConfig) -> dict[str, Shape]:
    """Name and shape of every tensor of a draft in canonical form, `target_ids` included; the embedding not.

    Layer 0 reads the normed embedding (input_layernorm) beside the normed feature (hidden_norm), so its q, k and v
    are 2 * H wide. Layers 1.. read its output and are ordinary ones of width H. Biases and the norms of q and k are
    those of every layer, or of none.
    """
    width = config.hidden_size
    tensors: dict[str, Shape] = {"fc.weight": (width, config.tap_width)}
    for index in range(config.num_layers):
        tensors |= _draft_layer(config, index)
    tensors["norm.weight"] = (width,)
    tensors[TARGET_IDS] = (config.draft_vocab_size,)
    if config.own_head:
        tensors["lm_head.weight"] = (config.draft_vocab_size, width)
    if config.fc_bias:
        tensors["fc.bias"] = (width,)
    if config.fc_norm:
        tensors |= {f"fc_norm.{i}.weight": (config.target_hidden_size,) for i in range(len(config.taps))}
    if config.norm_before_fc:
        tensors["input_norm.weight"] = (config.tap_width,)
    return tensors


def _draft_layer(config: DraftConfig, index: int) -> dict[str, Shape]:
    """The tensors of one layer."""
    layer, width, inner = f"layers.{index}", config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    read = width if index else 2 * width
    attention = {"q_proj": (queries, read), "k_proj": (keys, read), "v_proj": (keys, read), "o_proj": (width, queries)}
    mlp = {"gate_proj": (inner, width), "up_proj": (inner, width), "down_proj": (width, inner)}
    norms = ["input_layernorm", "post_attention_layernorm"]
    if index == 0:
        norms.insert(1, "hidden_norm")
    tensors: dict[str, Shape] = {f"{layer}.self_attn.{name}.weight": shape for name, shape in attention.items()}
    tensors |= {f"{layer}.{name}.weight": (width,) for name in norms}
    tensors |= {f"{layer}.mlp.{name}.weight": shape for name, shape in mlp.items()}
    if config.attention_bias:
        tensors |= {f"{layer}.self_attn.{n}_proj.bias": (queries if n == "q" else keys,) for n in "qkv"}
    if config.output_bias:
        tensors[f"{layer}.self_attn.o_proj.bias"] = (width,)
    if config.mlp_bias:
        tensors |= {f"{layer}.mlp.{name}.bias": shape[:1] for name, shape in mlp.items()}
    if config.qk_norm:
        tensors |= {f"{layer}.self_attn.{n}_norm.weight": (config.head_dim,) for n in "qk"}
    return tensors


def group_and_bits(quantization: Quantization, module: str) -> tuple[int, int]:
    """Group size and bits of a quantised module."""
    for path, group, bits in quantization.overrides:
        if path == module:
            return group, bits
    return quantization.group_size, quantization.bits


def problem_in_target(tensors: Mapping[str, Described], config: TargetConfig, quantization: Quantization | None) -> str:
    """What is wrong with a target's tensors, as a clause that names the first bad one; empty: nothing."""
    known: set[str] = set()
    for module, shape in quantizable(config):
        known |= {f"{module}.{part}" for part in ("weight", "scales", "biases")}
        problem = _problem_in_module(tensors, module, shape, quantization)
        if problem:
            return problem
    for name, shape in target_vectors(config):
        known.add(name)
        problem = _problem(tensors, name, shape, DENSE)
        if problem:
            return problem
    return _unknown(tensors, known)


def problem_in_draft(
    tensors: Mapping[str, Described], config: DraftConfig, vocab_size: int, quantization: Quantization | None = None
) -> str:
    """What is wrong with a draft's tensors, as a clause that names the first bad one; empty: nothing."""
    expected, known = draft_tensors(config), set[str]()
    if config.own_embedding:
        expected[DRAFT_EMBEDDING] = (vocab_size, config.hidden_size)
    for name, shape in expected.items():
        known.add(name)
        if len(shape) == 2:
            module = name.removesuffix(".weight")
            known |= {f"{module}.scales", f"{module}.biases"}
            problem = _problem_in_module(tensors, module, shape, quantization)
        else:
            problem = _problem(tensors, name, shape, ("I64",) if name == TARGET_IDS else DENSE)
        if problem:
            return problem
    return _unknown(tensors, known)


def _problem_in_module(
    tensors: Mapping[str, Described], module: str, shape: Shape, quantization: Quantization | None
) -> str:
    """`shape` is that of the dense weight: rows and columns, experts before them."""
    weight, rows, columns = f"{module}.weight", shape[:-1], shape[-1]
    if f"{module}.scales" not in tensors:
        if f"{module}.biases" in tensors:
            return f"the tensor {module}.scales is missing beside {module}.biases"
        return _problem(tensors, weight, shape, DENSE)
    if quantization is None:
        return f"the tensor {module}.scales is quantised, but no quantisation is declared"
    if module in quantization.mxfp4:
        return _problem_in_mxfp4(tensors, module, shape)
    group, bits = group_and_bits(quantization, module)
    if bits not in BITS or group not in GROUPS:
        return f"{module} is quantised to {bits} bits in groups of {group}, which is not a known form"
    if columns % group:
        return f"{module} has {columns} columns, which groups of {group} do not divide"
    groups = (*rows, columns // group)
    return (
        _problem(tensors, weight, (*rows, columns * bits // 32), ("U32",))
        or _problem(tensors, f"{module}.scales", groups, DENSE)
        or _problem(tensors, f"{module}.biases", groups, DENSE)
    )


def _problem_in_mxfp4(tensors: Mapping[str, Described], module: str, shape: Shape) -> str:
    rows, columns = shape[:-1], shape[-1]
    if columns % MXFP4_GROUP:
        return f"{module} has {columns} columns, which groups of {MXFP4_GROUP} do not divide"
    if f"{module}.biases" in tensors:
        return f"the tensor {module}.biases does not belong to MXFP4"
    words = (*rows, columns * MXFP4_BITS // 32)
    groups = (*rows, columns // MXFP4_GROUP)
    return _problem(tensors, f"{module}.weight", words, ("U32",)) or _problem(
        tensors, f"{module}.scales", groups, ("U8",)
    )


def _problem(tensors: Mapping[str, Described], name: str, shape: Shape, dtypes: tuple[str, ...]) -> str:
    found = tensors.get(name)
    if found is None:
        return f"the tensor {name} is missing"
    if found.shape != shape:
        return f"the tensor {name} has the shape {list(found.shape)}, not {list(shape)}"
    if found.dtype not in dtypes:
        return f"the tensor {name} has the type {found.dtype}, not {' or '.join(dtypes)}"
    return ""


def _unknown(tensors: Mapping[str, Described], known: set[str]) -> str:
    unknown = sorted(set(tensors) - known)
    return f"the tensor {unknown[0]} is not known here" if unknown else ""
