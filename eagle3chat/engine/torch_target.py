"""The target: one decoder with flags. A family is a set of flag values in `TargetConfig`, not a class.

Knows no draft and no choice of tokens: ids in, logits and taps out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from eagle3chat.engine.config import TargetConfig
from eagle3chat.engine.torch_cache import target_cache
from eagle3chat.engine.torch_decoder import Layer
from eagle3chat.engine.torch_layers import FEW_ROWS
from eagle3chat.engine.torch_linear import Dense, Table
from eagle3chat.engine.torch_loader import Loader, Precision
from eagle3chat.engine.torch_program import Program
from eagle3chat.engine.torch_rope import Angles
from eagle3chat.engine.torch_span import FixedSpan, Place, Span
from eagle3chat.engine.torch_weights import Checkpoint

__all__ = ["Precision", "Target"]


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
        loader = Loader(config, checkpoint, precision)
        self.cache = target_cache(config, capacity, dtype, device)
        # Layers are of one kind or two: by whether they see a window.
        self.kinds = [config.kind(index).window > 0 for index in range(config.num_layers)]
        self.angles = {kind: self._angles(self.kinds.index(kind), capacity) for kind in dict.fromkeys(self.kinds)}
        self.layers: list[Layer] = []
        for index, kind in enumerate(self.kinds):
            self.layers.append(loader.layer(index))
            self.layers[index].attention.bind(*self.cache.place(index), self.angles[kind])
            loaded((index + 1) / (config.num_layers + 1))
        self.inputs = loader.layer_inputs()
        self.norm = loader.norm("model.norm", config.hidden_size)
        self.norms = [*(layer.input_norm for layer in self.layers), self.norm]  # of the stream at each boundary
        fits = all(layer.plain for layer in self.layers) and Program.fits(self.layers)
        self.program = Program(self.layers, self.norms, self.taps) if fits else None
        self.head, self.embed = loader.ends()
        self.rows = self.embed
        # Rounded as the weights are: the models were made so.
        self.embed_scale = torch.tensor(config.embed_scale, dtype=dtype).item()
        loaded(1.0)

    def _angles(self, index: int, capacity: int) -> Angles:
        kind, heads = self.config.kind(index), self.config.num_heads
        turned, kept = heads + kind.num_kv_heads, kind.num_kv_heads
        return Angles(kind.rope, kind.head_dim, turned, kept, capacity, self.precision.dtype, self.precision.device)

    @property
    def nbytes(self) -> int:
        """Bytes of weights and cache; memory that two parts share counts once."""
        layers = sum(layer.nbytes for layer in self.layers)
        inputs = 0 if self.inputs is None else self.inputs.nbytes
        shared = (
            isinstance(self.head, Dense) and isinstance(self.embed, Table) and self.head.weight is self.embed.weight
        )
        return layers + inputs + self.head.nbytes + (0 if shared else self.embed.nbytes) + self.cache.nbytes

    @property
    def pass_bytes(self) -> int:
        """Bytes of the matrices that a pass of few rows reads, each once; 0: experts are chosen by the rows.

        Not among them are the rows of embedding tables, the norms' vectors and the cache.
        """
        if self.config.experts is not None:
            return 0
        inputs = 0 if self.inputs is None else self.inputs.projection.nbytes
        return sum(layer.nbytes for layer in self.layers) + inputs + self.head.nbytes

    def __call__(self, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """One pass over tokens [M] at the positions after the cache's rows. Writes the cache, does not count its rows.

        Returns:
            The normed stream [M, width] after the last layer, and the taps [M, A * width] in
            ascending order of boundary, or None without a draft.
        """
        cache, rows = self.cache, tokens.shape[0]
        start = cache.rows
        cache.prepare(rows)
        x = self._embedded(tokens)
        if self.program is not None and rows <= FEW_ROWS:
            return self.program(x, start)
        spans = {
            kind: self.layers[self.kinds.index(kind)].attention.span(start, rows, angles, x.dtype, x.device)
            for kind, angles in self.angles.items()
        }
        return self._through(tokens, x, spans)

    def at(self, tokens: Tensor, places: Sequence[Place]) -> tuple[Tensor, Tensor | None]:
        """The same at positions that the device knows, one place for each of the cache's parts, which have the room."""
        where = {part.window > 0: place for part, place in zip(self.cache.parts, places, strict=True)}
        x = self._embedded(tokens)
        spans = {
            kind: self.layers[self.kinds.index(kind)].attention.span_at(where[kind], tokens.shape[0], angles, x.dtype)
            for kind, angles in self.angles.items()
        }
        return self._through(tokens, x, spans)

    def _embedded(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        return x if self.embed_scale == 1.0 else x * self.embed_scale

    def _through(
        self, tokens: Tensor, x: Tensor, spans: Mapping[bool, Span | FixedSpan]
    ) -> tuple[Tensor, Tensor | None]:
        """All layers, by whether they see a window; results as `__call__`'s."""
        cache = self.cache
        given = [None] * len(self.layers) if self.inputs is None else self.inputs(tokens, x)
        tapped = []
        normed = self.norms[0](x)
        for index, layer in enumerate(self.layers):
            if index in self.taps:
                tapped.append(x)
            part, place = cache.place(index)
            x, normed = layer(x, normed, part, place, spans[self.kinds[index]], given[index], self.norms[index + 1])
        if len(self.layers) in self.taps:
            tapped.append(x)
        return normed, torch.cat(tapped, -1) if tapped else None

    def logits(self, normed: Tensor) -> Tensor:
        """Float32 logits [M, V] of the normed stream [M, width]."""
        y = self.head(normed).float()
        cap = self.config.logit_softcap
        return torch.tanh(y / cap) * cap if cap else y
