"""A draft that learns: the head of `engine.torch_draft` with gradients, over many positions at once.

Training-time test (Li et al., "EAGLE-3", 2025): every position of a reply is taken for the anchor of a round. Step 0
is the pass over true features; step j continues each anchor's own chain with the head's own output, at the next
position, on the true next token. A row of step j sees what it would see in real drafting: the true rows up to its
anchor's, and the rows of its own chain before it. Knows no loss and no optimiser.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from eagle3chat.engine.config import DraftConfig
from eagle3chat.engine.torch_rope import frequencies
from eagle3chat.train.torch_features import Features

ATTENTION, MLP = "layers.0.self_attn", "layers.0.mlp"
HEAD = "lm_head.weight"
Weights = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Part:
    """Conversations to compute at once, their rows behind each other without padding.

    A conversation of L tokens whose reply begins at s has L - 2 true rows (row t: feature t and token t + 1) and
    R = L - s anchors (row t = s - 2 + r proposes reply token r).

    Args:
        taps: [N, A * Ht] of the true rows.
        tokens: int64 [N + depth], of the true rows; the last ones only pad.
        positions: int64 [N].
        anchors: int64 [M], rows of the anchors.
        true_rows, replies: L - 2 and R of each conversation.
        normed: [M, Ht]; best: int64 [M]; top, sum: float32 [M]: see `Features`.
        last: int64 [M]: how many anchors of the same conversation come after each.
    """

    taps: Tensor
    tokens: Tensor
    positions: Tensor
    anchors: Tensor
    true_rows: tuple[int, ...]
    replies: tuple[int, ...]
    normed: Tensor
    best: Tensor
    top: Tensor
    sum: Tensor
    last: Tensor


def join(features: Sequence[Features], depth: int, device: torch.device | None = None) -> Part:
    """The part of some conversations, on a device (None: the CPU)."""
    rows = [len(f.ids) - 2 for f in features]
    replies = [len(f.ids) - f.start for f in features]
    firsts = [sum(rows[:i]) for i in range(len(rows))]
    tokens = [f.ids[1:-1] for f in features]
    part = Part(
        taps=torch.cat([f.taps[:n] for f, n in zip(features, rows, strict=True)]),
        tokens=torch.cat([*tokens, torch.zeros(depth, dtype=torch.int64)]),
        positions=torch.cat([torch.arange(n) for n in rows]),
        anchors=torch.cat([torch.arange(f.start - 2, n) + at for f, n, at in zip(features, rows, firsts, strict=True)]),
        true_rows=tuple(rows),
        replies=tuple(replies),
        normed=torch.cat([f.normed for f in features]),
        best=torch.cat([f.best for f in features]),
        top=torch.cat([f.top for f in features]),
        sum=torch.cat([f.sum for f in features]),
        last=torch.cat([torch.arange(n - 1, -1, -1) for n in replies]),
    )
    if device is None or device.type == "cpu":
        return part
    tensors = {field.name: getattr(part, field.name) for field in fields(part)}
    return replace(part, **{name: t.to(device) for name, t in tensors.items() if isinstance(t, Tensor)})


class Head:
    """The head's arithmetic for given weights.

    Args:
        config: One layer.
        embedding: [V, H], the target's raw rows, in the dtype that is computed in.
        length: Positions.
    """

    def __init__(self, config: DraftConfig, embedding: Tensor, length: int) -> None:
        self.config, self.embedding = config, embedding
        angle = torch.arange(length, dtype=torch.float64)[:, None] * frequencies(config.rope, config.head_dim)
        self.cos = torch.cat((angle.cos(), angle.cos()), -1).to(embedding)
        self.sin = torch.cat((-angle.sin(), angle.sin()), -1).to(embedding)

    def __call__(self, weights: Weights, part: Part, depth: int) -> list[Tensor]:
        """The normed outputs [M, H] of each step; times `lm_head` they are logits.

        Row r of step j proposes the token j after the anchor's; it means nothing where part.last < j.
        """
        c = self.config
        features = self._fuse(weights, part.taps.to(self.embedding.dtype))
        x, residual = self._enter(weights, part.tokens[: len(features)], features)
        keys, values = self._keys(weights, x, part.positions)
        masks = [self._mask(rows, replies) for rows, replies in zip(part.true_rows, part.replies, strict=True)]
        x, residual = x[part.anchors], residual[part.anchors]
        own: list[tuple[Tensor, Tensor]] = []
        outs: list[Tensor] = []
        for step in range(depth):
            positions = part.positions[part.anchors] + step
            if step:
                x, residual = self._enter(weights, part.tokens[part.anchors + step], features)
                own.append(self._keys(weights, x, positions))
            queries = self._queries(weights, x, positions)
            mixed = self._attend(part, queries, keys, values, own, masks)
            stream = residual + self._linear(weights, f"{ATTENTION}.o_proj", mixed)
            stream = stream + self._mlp(weights, self._norm(weights, "layers.0.post_attention_layernorm", stream))
            normed = self._norm(weights, "norm", stream)
            features = normed if c.norm_output else stream
            outs.append(normed)
        return outs

    def _linear(self, weights: Weights, module: str, x: Tensor) -> Tensor:
        return F.linear(x, weights[f"{module}.weight"], weights.get(f"{module}.bias"))

    def _norm(self, weights: Weights, module: str, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weights[f"{module}.weight"], self.config.rms_eps)

    def _fuse(self, weights: Weights, taps: Tensor) -> Tensor:
        c = self.config
        if c.fc_norm:
            chunks = taps.chunk(len(c.taps), -1)
            taps = torch.cat([self._norm(weights, f"fc_norm.{i}", chunk) for i, chunk in enumerate(chunks)], -1)
        if c.norm_before_fc:
            taps = self._norm(weights, "input_norm", taps)
        return self._linear(weights, "fc", taps)

    def _enter(self, weights: Weights, tokens: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """What the layer reads [M, 2 H], and its residual [M, H]."""
        normed = self._norm(weights, "layers.0.hidden_norm", features)
        embedded = self._norm(weights, "layers.0.input_layernorm", F.embedding(tokens, self.embedding))
        return torch.cat((embedded, normed), -1), normed if self.config.norm_before_residual else features

    def _heads(self, weights: Weights, x: Tensor, name: str, count: int) -> Tensor:
        """[M, count, d], normed where the draft norms its heads."""
        y = self._linear(weights, f"{ATTENTION}.{name}_proj", x).view(-1, count, self.config.head_dim)
        return self._norm(weights, f"{ATTENTION}.{name}_norm", y) if self.config.qk_norm and name != "v" else y

    def _turn(self, y: Tensor, positions: Tensor) -> Tensor:
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        return y * cos + y.roll(self.config.head_dim // 2, -1) * sin

    def _keys(self, weights: Weights, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        count = self.config.num_kv_heads
        return self._turn(self._heads(weights, x, "k", count), positions), self._heads(weights, x, "v", count)

    def _queries(self, weights: Weights, x: Tensor, positions: Tensor) -> Tensor:
        return self._turn(self._heads(weights, x, "q", self.config.num_heads), positions)

    def _mlp(self, weights: Weights, x: Tensor) -> Tensor:
        gate = F.silu(self._linear(weights, f"{MLP}.gate_proj", x))
        return self._linear(weights, f"{MLP}.down_proj", gate * self._linear(weights, f"{MLP}.up_proj", x))

    def _mask(self, rows: int, replies: int) -> Tensor:
        """Added to scores [R, L - 2]: 0 where an anchor may see a true row."""
        mask = torch.full((replies, rows), -torch.inf, dtype=self.embedding.dtype, device=self.embedding.device)
        return mask.triu_(rows - replies + 1)

    def _attend(
        self,
        part: Part,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        own: Sequence[tuple[Tensor, Tensor]],
        masks: Sequence[Tensor],
    ) -> Tensor:
        """Queries [M, heads, d] on true rows [N, kv, d] and the chains' own rows [M, kv, d] -> [M, heads * d]."""
        c = self.config
        kv, group = c.num_kv_heads, c.num_heads // c.num_kv_heads
        queries = queries.view(-1, kv, group, c.head_dim) * c.head_dim**-0.5
        chain = [(queries * k[:, :, None]).sum(-1) for k, _ in own]  # [M, kv, group]
        mixed: list[Tensor] = []
        row = reply = 0
        for rows, replies, mask in zip(part.true_rows, part.replies, masks, strict=True):
            said = slice(reply, reply + replies)
            q = queries[said].permute(1, 2, 0, 3).reshape(kv, group * replies, c.head_dim)
            k, v = keys[row : row + rows].transpose(0, 1), values[row : row + rows].transpose(0, 1)
            scores = (q @ k.transpose(1, 2)).view(kv, group, replies, rows) + mask
            extra = [score[said].permute(1, 2, 0)[..., None] for score in chain]
            p = torch.cat((scores, *extra), -1).softmax(-1)
            y = (p[..., :rows].reshape(kv, group * replies, rows) @ v).view(kv, group, replies, c.head_dim)
            for index, (_, value) in enumerate(own):
                y = y + p[..., rows + index, None] * value[said].transpose(0, 1)[:, None]
            mixed.append(y.permute(2, 0, 1, 3).reshape(replies, -1))
            row, reply = row + rows, reply + replies
        return torch.cat(mixed)
