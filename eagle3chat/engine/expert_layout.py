"""Which tensors a mixture of experts consists of in a bundle: names and shapes, from the config alone.

The layout is the one that mlx-lm's models have after loading, so that both backends read the same file: the matrices of
all experts of a layer stand in one tensor each, gate, up and down apart. Knows no files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from eagle3chat.engine.config import ExpertsKind, TargetConfig

EXPERT_MODULES: Mapping[ExpertsKind, tuple[str, str]] = {
    "qwen3": ("mlp.gate", "mlp.switch_mlp"),
    "gpt_oss": ("mlp.router", "mlp.experts"),
    "gemma4": ("router.proj", "experts.switch_glu"),
}
"""Router and experts of a layer. An expert's matrices are `gate_proj`, `up_proj` and `down_proj` of the latter."""
GEMMA4_NORMS = ("pre_feedforward_layernorm_2", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2")


def expert_routers(config: TargetConfig) -> Iterator[tuple[str, int, int]]:
    """Module path, E and K of each layer's router."""
    if config.experts is not None:
        for index in range(config.num_layers):
            router, _ = EXPERT_MODULES[config.experts.kind]
            yield f"model.layers.{index}.{router}", config.experts.count, config.hidden_size


def expert_stacks(config: TargetConfig) -> Iterator[tuple[str, int, int, int]]:
    """Module path, E, N and K of every tensor that holds a matrix of each expert; each may be quantised."""
    if config.experts is None:
        return
    count, inner, width = config.experts.count, config.experts.intermediate_size, config.hidden_size
    for index in range(config.num_layers):
        experts = f"model.layers.{index}.{EXPERT_MODULES[config.experts.kind][1]}"
        yield f"{experts}.gate_proj", count, inner, width
        yield f"{experts}.up_proj", count, inner, width
        yield f"{experts}.down_proj", count, width, inner


def expert_vectors(config: TargetConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every other tensor of the experts; never quantised."""
    if config.experts is None:
        return
    kind, count, width = config.experts.kind, config.experts.count, config.hidden_size
    if kind == "gpt_oss":
        for module, _, rows, _ in expert_stacks(config):
            yield f"{module}.bias", (count, rows)
    for index in range(config.num_layers):
        layer = f"model.layers.{index}"
        if kind == "gpt_oss":
            yield f"{layer}.mlp.router.bias", (count,)
        if kind == "gemma4":
            yield f"{layer}.router.scale", (width,)
            yield f"{layer}.router.per_expert_scale", (count,)
            for norm in GEMMA4_NORMS:
                yield f"{layer}.{norm}.weight", (width,)
