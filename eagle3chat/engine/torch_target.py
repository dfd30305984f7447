"""The target: one decoder with flags. A family is a set of flag values in `TargetConfig`, not a class.

Knows no draft and no choice of tokens: ids in, logits and taps out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3chat.engine.config import TargetConfig
from eagle3chat.engine.torch_cache import KvCache
from eagle3chat.engine.torch_layers import FEW_ROWS, Attention, GatedMlp, Layer, Norm
from eagle3chat.engine.torch_linear import CodeTable, Dense, Int4, Linear, Table, embedding, linear
from eagle3chat.engine.torch_program import Program
from eagle3chat.engine.torch_rope import Angles
from eagle3chat.engine.torch_weights import Checkpoint


@dataclass(frozen=True, slots=True)
class Precision:
    """How a model runs: dtype of the activations, whether 4-bit weights stay 4-bit, and where."""

    dtype: torch.dtype
    int4: bool
    device: torch.device


class Target:
    """The target's weights, its cache, and its one pass.

    Args:
        taps: Boundaries whose residual stream is handed out: 0 = embedding output, b = after b layers
            (the last one before the final norm). Empty without a draft.
        capacity: Positions.
        loaded: Told the share that is loaded, 0..1.
    """

    def __init__(
        self,
        config: TargetConfig,
        checkpoint: Checkpoint,
        taps: tuple[int, ...],
        capacity: int,
        precision: Precision,
        loaded: Callable[[float], None],
    ) -> None:
        self.config, self.precision = config, precision
        self.taps = frozenset(taps)
        dtype, device = precision.dtype, precision.device
        self.angles = Angles(
            config.rope,
            config.head_dim,
            config.num_heads + config.num_kv_heads,
            config.num_kv_heads,
            capacity,
            dtype,
            device,
        )
        self.cache = KvCache(config.num_layers, config.num_kv_heads, config.head_dim, capacity, dtype, device)
        self.layers: list[Layer] = []
        for index in range(config.num_layers):
            self.layers.append(self._load_layer(checkpoint, f"model.layers.{index}"))
            self.layers[index].attention.bind(self.cache, index, self.angles)
            loaded((index + 1) / (config.num_layers + 1))
        self.norm = self._load_norm(checkpoint, "model.norm", config.hidden_size)
        self.norms = [*(layer.input_norm for layer in self.layers), self.norm]  # of the stream at each boundary
        self.program = Program(self.layers, self.norms, self.taps) if Program.fits(self.layers) else None
        self.head, self.embed, self.rows = self._load_ends(checkpoint)
        loaded(1.0)

    def _load_norm(self, checkpoint: Checkpoint, module: str, width: int) -> Norm:
        weight = checkpoint.tensor(f"{module}.weight", width)
        return Norm(weight.to(self.precision.device, self.precision.dtype).clone(), self.config.rms_eps)

    def _load_linear(
        self, checkpoint: Checkpoint, module: str, names: dict[str, int], columns: int, biased: bool = False
    ) -> Linear:
        """The stacked weights of `names` (name -> rows) in a module."""
        parts = [checkpoint.weight(f"{module}.{name}", rows, columns) for name, rows in names.items()]
        bias = torch.cat([checkpoint.tensor(f"{module}.{n}.bias", r) for n, r in names.items()]) if biased else None
        return linear(
            parts, int4=self.precision.int4, dtype=self.precision.dtype, device=self.precision.device, bias=bias
        )

    def _load_layer(self, checkpoint: Checkpoint, at: str) -> Layer:
        c = self.config
        q, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        attention, mlp = f"{at}.self_attn", f"{at}.mlp"
        qkv = self._load_linear(
            checkpoint, attention, {"q_proj": q, "k_proj": kv, "v_proj": kv}, c.hidden_size, c.attention_bias
        )
        out = self._load_linear(checkpoint, attention, {"o_proj": c.hidden_size}, q)
        q_norm = self._load_norm(checkpoint, f"{attention}.q_norm", c.head_dim) if c.qk_norm else None
        k_norm = self._load_norm(checkpoint, f"{attention}.k_norm", c.head_dim) if c.qk_norm else None
        width = c.intermediate_size
        gate_up = self._load_linear(checkpoint, mlp, {"gate_proj": width, "up_proj": width}, c.hidden_size)
        down = self._load_linear(checkpoint, mlp, {"down_proj": c.hidden_size}, width)
        return Layer(
            self._load_norm(checkpoint, f"{at}.input_layernorm", c.hidden_size),
            Attention(qkv, out, c.num_heads, c.num_kv_heads, c.head_dim, q_norm, k_norm),
            self._load_norm(checkpoint, f"{at}.post_attention_layernorm", c.hidden_size),
            GatedMlp(gate_up, down, c.activation, width, self.precision.dtype, self.precision.device),
        )

    def _load_ends(self, checkpoint: Checkpoint) -> tuple[Linear, Table | CodeTable, Table | CodeTable]:
        """The head and the embedding, sharing memory where they are tied and plain."""
        c, p = self.config, self.precision
        table = checkpoint.weight("model.embed_tokens", c.vocab_size, c.hidden_size)
        head = table if c.tie_embeddings else checkpoint.weight("lm_head", c.vocab_size, c.hidden_size)
        made = linear([head], int4=p.int4, dtype=p.dtype, device=p.device, wide=True)
        shared = made if c.tie_embeddings and not isinstance(made, Int4) else None
        rows = embedding(table, shared, dtype=p.dtype, device=p.device)
        return made, rows, rows

    @property
    def nbytes(self) -> int:
        """Bytes of weights and cache; memory that two parts share counts once."""
        layers = sum(layer.attention.nbytes + layer.mlp.nbytes for layer in self.layers)
        shared = (
            isinstance(self.head, Dense) and isinstance(self.embed, Table) and self.head.weight is self.embed.weight
        )
        return layers + self.head.nbytes + (0 if shared else self.embed.nbytes) + self.cache.nbytes

    def __call__(self, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """One pass over tokens [M] at the positions after the cache's rows. Writes the cache, does not count its rows.

        Returns:
            The normed stream [M, width] after the last layer, and the taps [M, A * width] in
            ascending order of boundary, or None without a draft.
        """
        cache, rows = self.cache, tokens.shape[0]
        start = cache.rows
        assert start + rows <= cache.capacity, (start, rows, cache.capacity)
        x = self.embed(tokens)
        if self.config.embed_scale != 1.0:
            x = x * self.config.embed_scale
        if self.program is not None and rows <= FEW_ROWS:
            return self.program(x, start)
        span = self.layers[0].attention.span(start, rows, self.angles, x.dtype, x.device)
        tapped = []
        normed = self.norms[0](x)
        for index, layer in enumerate(self.layers):
            if index in self.taps:
                tapped.append(x)
            x, normed = layer.post_norm.add(x, layer.attention(normed, cache, index, span))
            x, normed = self.norms[index + 1].add(x, layer.mlp(normed))
        if len(self.layers) in self.taps:
            tapped.append(x)
        return normed, torch.cat(tapped, -1) if tapped else None

    def logits(self, normed: Tensor) -> Tensor:
        """Float32 logits [M, V] of the normed stream [M, width]."""
        y = self.head(normed).float()
        cap = self.config.logit_softcap
        return torch.tanh(y / cap) * cap if cap else y
