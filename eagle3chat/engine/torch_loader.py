"""A target's layers out of a checkpoint: which tensor becomes which part.

Knows no cache and no pass; torch_target.py has them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3chat.engine.config import TargetConfig
from eagle3chat.engine.expert_layout import GEMMA4_NORMS
from eagle3chat.engine.torch_decoder import Layer, LayerInput
from eagle3chat.engine.torch_experts import ExpertsBeside, Mixture, load_mixture
from eagle3chat.engine.torch_layers import Attention, GatedMlp, Norm
from eagle3chat.engine.torch_linear import Int4, Linear, Rows, Table, embedding, linear
from eagle3chat.engine.torch_weights import Checkpoint


@dataclass(frozen=True, slots=True)
class Precision:
    """How a model runs: dtype of the activations, whether 4-bit weights stay 4-bit, and where."""

    dtype: torch.dtype
    int4: bool
    device: torch.device


class LayerInputs:
    """The second input of every layer: an embedding of its own mixed with a projection of the first one (Gemma 4 E).

    Args:
        table: [V', layers * P].
        projection: [layers * P, width].
        norm: Of width P.
        layers: Their number.
    """

    def __init__(self, table: Rows, projection: Linear, norm: Norm, layers: int) -> None:
        self.table, self.projection, self.norm, self.layers = table, projection, norm, layers
        self.nbytes = table.nbytes + projection.nbytes

    def __call__(self, tokens: Tensor, x: Tensor) -> Tensor:
        """tokens [M] and the stream x [M, width] before the first layer -> [layers, M, P]."""
        shape = (tokens.shape[0], self.layers, -1)
        own = self.table(tokens).view(shape)
        seen = (self.projection(x) * x.shape[1] ** -0.5).view(shape)
        mixed = (self.norm(seen) + own * own.shape[2] ** 0.5) * 2.0**-0.5
        return mixed.transpose(0, 1).contiguous()


class Loader:
    """Builds the parts of a target.

    Args:
        checkpoint: With the names of layout.py; open while this is used.
    """

    def __init__(self, config: TargetConfig, checkpoint: Checkpoint, precision: Precision) -> None:
        self.config, self.checkpoint, self.precision = config, checkpoint, precision

    def norm(self, module: str, width: int) -> Norm:
        """A norm with a weight."""
        weight = self.checkpoint.tensor(f"{module}.weight", width)
        placed = weight.to(self.precision.device, self.precision.dtype).clone()
        return Norm(placed, self.config.rms_eps, self.config.norm_offset)

    def linear(self, module: str, names: dict[str, int], columns: int, biased: bool = False) -> Linear:
        """The stacked weights of `names` (name -> rows) in a module."""
        parts = [self.checkpoint.weight(f"{module}.{name}", rows, columns) for name, rows in names.items()]
        biases = [self.checkpoint.tensor(f"{module}.{name}.bias", rows) for name, rows in names.items() if biased]
        p = self.precision
        bias = torch.cat(biases) if biased else None
        return linear(parts, int4=p.int4, dtype=p.dtype, device=p.device, bias=bias)

    def layer(self, index: int) -> Layer:
        """A decoder layer."""
        c, at, width = self.config, f"model.layers.{index}", self.config.hidden_size
        before, after = "post_attention_layernorm", None
        if c.sandwich_norms:
            before, after = "pre_feedforward_layernorm", self.norm(f"{at}.post_attention_layernorm", width)
        return Layer(
            self.norm(f"{at}.input_layernorm", width),
            self._attention(index, f"{at}.self_attn"),
            self.norm(f"{at}.{before}", width),
            self._mlp(index, f"{at}.mlp") if c.dense_mlp else self._mixture(at),
            attention_norm=after,
            mlp_norm=self.norm(f"{at}.post_feedforward_layernorm", width) if c.sandwich_norms else None,
            extra=self._layer_input(at) if c.layer_input_size else None,
            experts=self._experts_beside(at) if c.experts is not None and c.dense_mlp else None,
            scalar=self.checkpoint.tensor(f"{at}.layer_scalar", 1).float().item() if c.layer_scalar else 1.0,
        )

    def _attention(self, index: int, at: str) -> Attention:
        c, kind, own = self.config, self.config.kind(index), self.config.cache_layer(index) == index
        d, keys = kind.head_dim, kind.num_kv_heads * kind.head_dim
        names = {"q_proj": c.num_heads * d}
        if own:
            names["k_proj"] = keys
        if own and not kind.key_is_value:
            names["v_proj"] = keys
        plain = torch.ones(d, dtype=self.precision.dtype, device=self.precision.device)
        return Attention(
            self.linear(at, names, c.hidden_size, c.attention_bias),
            self.linear(at, {"o_proj": c.hidden_size}, c.num_heads * d, c.output_bias),
            c.num_heads,
            kind.num_kv_heads,
            d,
            self.norm(f"{at}.q_norm", d) if c.qk_norm else None,
            self.norm(f"{at}.k_norm", d) if c.qk_norm and own else None,
            v_norm=Norm(plain, c.rms_eps) if c.value_norm else None,
            scale=c.attention_scale,
            window=kind.window,
            key_is_value=kind.key_is_value,
            shared=not own,
            sinks=self._sinks(at) if c.sinks else None,
        )

    def _sinks(self, at: str) -> Tensor:
        return self.checkpoint.tensor(f"{at}.sinks", self.config.num_heads).float().to(self.precision.device)

    def _mlp(self, index: int, at: str) -> GatedMlp:
        c, inner = self.config, self.config.mlp_size(index)
        gate_up = self.linear(at, {"gate_proj": inner, "up_proj": inner}, c.hidden_size)
        down = self.linear(at, {"down_proj": c.hidden_size}, inner)
        return GatedMlp(gate_up, down, c.activation, inner, self.precision.dtype, self.precision.device)

    def _mixture(self, at: str) -> Mixture:
        p = self.precision
        return load_mixture(self.checkpoint, at, self.config, int4=p.int4, dtype=p.dtype, device=p.device)

    def _experts_beside(self, at: str) -> ExpertsBeside:
        before, own, after = (self.norm(f"{at}.{name}", self.config.hidden_size) for name in GEMMA4_NORMS)
        return ExpertsBeside(self._mixture(at), before, own, after)

    def _layer_input(self, at: str) -> LayerInput:
        width, size = self.config.hidden_size, self.config.layer_input_size
        gate = self.linear(at, {"per_layer_input_gate": size}, width)
        up = self.linear(at, {"per_layer_projection": width}, size)
        return LayerInput(gate, up, self.norm(f"{at}.post_per_layer_input_norm", width))

    def layer_inputs(self) -> LayerInputs | None:
        """What gives the layers their second input; None: they have none."""
        c, p = self.config, self.precision
        if not c.layer_input_size:
            return None
        total = c.num_layers * c.layer_input_size
        weight = self.checkpoint.weight("model.embed_tokens_per_layer", c.layer_input_vocab, total)
        projection = self.linear("model", {"per_layer_model_projection": total}, c.hidden_size)
        norm = self.norm("model.per_layer_projection_norm", c.layer_input_size)
        # The largest tensor of these models: a dense one stays as it is stored.
        plain = Table(weight.to(p.device), p.dtype) if isinstance(weight, Tensor) else None
        table = plain or embedding(weight, None, dtype=p.dtype, device=p.device)
        return LayerInputs(table, projection, norm, c.num_layers)

    def ends(self) -> tuple[Linear, Rows]:
        """The head and the embedding, sharing memory where they are tied and plain."""
        c, p = self.config, self.precision
        table = self.checkpoint.weight("model.embed_tokens", c.vocab_size, c.hidden_size)
        head = table if c.tie_embeddings else self.checkpoint.weight("lm_head", c.vocab_size, c.hidden_size)
        made = linear([head], int4=p.int4, dtype=p.dtype, device=p.device, wide=True)
        shared = made if c.tie_embeddings and not isinstance(made, Int4) else None
        return made, embedding(table, shared, dtype=p.dtype, device=p.device)
