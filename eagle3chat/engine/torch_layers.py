"""The parts that the target's layers and the draft's layer share: norm, attention, gated MLP.

Rows are positions, [M, width], without a batch axis. On a CPU a pass over few rows costs mostly the
starting of small operations, so each part is one call of the compiled kernels where they are built; torch's
operations serve elsewhere. Knows no layer order.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from eagle3chat.engine.torch_cache import KvCache
from eagle3chat.engine.torch_linear import Linear
from eagle3chat.engine.torch_rope import Angles
from eagle3chat.engine.torch_sinks import attend_with_sinks
from eagle3chat.engine.torch_span import FOLD_ROWS, FixedSpan, Place, Span, causal_mask, placed_mask
from eagle3chat.kernels import cpu_attention
from eagle3chat.kernels.cpu import library
from eagle3chat.kernels.cpu_attention import Attend
from eagle3chat.kernels.cpu_parts import DTYPES, Gate, RowNorm

FEW_ROWS = cpu_attention.FEW_ROWS  # passes up to this long have their own attention in the kernels


def has_kernels(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the compiled kernels serve activations of this dtype there."""
    return device.type == "cpu" and dtype in DTYPES and library() is not None


class Norm:
    """RMS norm: x / sqrt(mean(x^2) + eps) * weight [width].

    On a CPU F.rms_norm is eight small operations; without the kernels, sqrt(sum(x^2) + width * eps), the hypotenuse
    of the row's length and a constant, needs five for the same numbers.

    Args:
        weight: In the dtype of the rows.
        offset: Added to the weight, in float32.
    """

    def __init__(self, weight: Tensor, eps: float, offset: float = 0.0) -> None:
        exact = weight.float() + offset
        self.weight, self.eps, self.shape = exact.to(weight.dtype), eps, (weight.shape[0],)
        self.exact = exact
        self.nbytes = weight.nbytes
        self.fused = weight.device.type != "cpu"
        self.floor = torch.tensor((weight.shape[0] * eps) ** 0.5)
        self.scaled = exact * weight.shape[0] ** 0.5
        self.kernel = RowNorm(exact, eps, weight.dtype) if has_kernels(weight.device, weight.dtype) else None

    def __call__(self, x: Tensor) -> Tensor:
        """Of the last dimension; heads, which have three, are normed by the kernels within their attention."""
        if self.kernel is not None and x.dim() == 2:
            return self.kernel(x.contiguous())
        if self.fused:
            return F.rms_norm(x, self.shape, self.weight, self.eps)
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        return torch.div(x, torch.hypot(length, self.floor)).mul_(self.scaled).to(x.dtype)

    def add(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """x + y [M, width], and the norm of that."""
        if self.kernel is not None:
            return self.kernel.add(x.contiguous(), y.contiguous())
        total = x + y
        return total, self(total)


class Attention:
    """Grouped-query attention of one layer.

    Args:
        qkv: [(heads + 2 kv) * d, width]: q, k, v stacked; with `key_is_value` q, k; with `shared` q alone.
        out: [width, heads * d].
        q_norm, k_norm, v_norm: By head, before the rotation, or None; v is not turned.
        scale: Of the scores; 0: 1 / sqrt(d).
        window: Positions that a row sees; 0: all.
        key_is_value: The value is the key's projection, before its norm.
        shared: It reads the keys and values that another layer wrote.
        sinks: Float32 [heads] or None, see torch_sinks.py.
    """

    kernel: Attend | None = None  # see `bind`

    def __init__(
        self,
        qkv: Linear,
        out: Linear,
        heads: int,
        kv_heads: int,
        head_dim: int,
        q_norm: Norm | None,
        k_norm: Norm | None,
        *,
        v_norm: Norm | None = None,
        scale: float = 0.0,
        window: int = 0,
        key_is_value: bool = False,
        shared: bool = False,
        sinks: Tensor | None = None,
    ) -> None:
        self.qkv, self.out = qkv, out
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.group = heads // kv_heads
        self.q_norm, self.k_norm, self.v_norm = q_norm, k_norm, v_norm
        self.scale, self.window = scale or head_dim**-0.5, window
        self.key_is_value, self.shared, self.sinks = key_is_value, shared, sinks
        self.nbytes = qkv.nbytes + out.nbytes

    def bind(self, cache: KvCache, layer: int, angles: Angles) -> None:
        """Let the kernels do passes with this layer of a cache, where they can."""
        part = cache.both[layer]
        if not (has_kernels(part.device, part.dtype) and cpu_attention.fits(part)):
            return
        if self.window or self.key_is_value or self.shared or self.v_norm is not None or self.sinks is not None:
            return
        norms = [None if norm is None else norm.exact for norm in (self.q_norm, self.k_norm)]
        eps = 0.0 if self.q_norm is None else self.q_norm.eps
        self.kernel = Attend(part, self.heads, angles.cos[:, 0], angles.sin[:, 0], *norms, eps, self.scale)

    def span(self, start: int, rows: int, angles: Angles, dtype: torch.dtype, device: torch.device) -> Span:
        """What the layers of a pass share; `self` is any one of its kind."""
        if self.kernel is not None:
            return Span(start, rows, None, None)
        mask = causal_mask(start, rows, self.group, dtype, device, self.window)
        return Span(start, rows, angles.at(start, rows), mask, max(0, start - self.window + 1) if self.window else 0)

    def span_at(self, place: Place, rows: int, angles: Angles, dtype: torch.dtype) -> FixedSpan:
        """`span` of a place, for up to FOLD_ROWS rows."""
        assert rows <= FOLD_ROWS
        positions = place.start + torch.arange(rows, device=place.start.device)
        slots = positions - place.shift
        mask = None if place.fused else placed_mask(slots, place.bound, self.group, dtype, self.window)
        return FixedSpan(rows, angles.of(positions), slots, mask, place.bound)

    def __call__(self, x: Tensor, cache: KvCache, layer: int, span: Span | FixedSpan) -> Tensor:
        """x [M, width] -> [M, width]; writes the rows' keys and values."""
        if span.turn is None:
            return self.out(self.kernel(self.qkv(x), span.start))
        if isinstance(span, FixedSpan):
            return self.out(self._fixed(self.qkv(x), cache, layer, span))
        q, kv = self._heads(self.qkv(x).view(span.rows, -1, self.head_dim), span)
        if kv is not None:
            cache.write(layer, span.start, kv)
        keys, values = cache.read(layer, span.start + span.rows, span.first)
        return self.out(self._attend(q, keys, values, span.mask))

    def _fixed(self, x: Tensor, cache: KvCache, layer: int, span: FixedSpan) -> Tensor:
        """The projections [M, ..] of a pass at a place -> [M, heads * d]."""
        q, kv = self._heads(x.view(span.rows, -1, self.head_dim), span)
        if kv is not None:
            cache.put(layer, span.slots, kv)
        if span.mask is not None:
            return self._attend(q, *cache.front(layer, span.bound), span.mask)
        from eagle3chat.kernels.triton_attention import attend

        options = {"scale": self.scale, "window": self.window, "sinks": self.sinks}
        return attend(q, cache.both[layer], span.slots[:1], **options)

    def _heads(self, x: Tensor, span: Span | FixedSpan) -> tuple[Tensor, Tensor | None]:
        """Projections [M, .., d], normed and turned: q [M, heads, d], and k, v [M, 2 kv, d]; shared: None."""
        heads, kv = self.heads, self.kv_heads
        if self.shared:
            return span.turned(x if self.q_norm is None else self.q_norm(x)), None
        if self.q_norm is not None or self.key_is_value or self.v_norm is not None:
            q, k = x.narrow(1, 0, heads), x.narrow(1, heads, kv)
            v = k if self.key_is_value else x.narrow(1, heads + kv, kv)
            parts = zip((q, k, v), (self.q_norm, self.k_norm, self.v_norm), strict=True)
            x = torch.cat([part if norm is None else norm(part) for part, norm in parts], 1)
        x = span.turn(x)
        return x.narrow(1, 0, heads), x.narrow(1, heads, 2 * kv)

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """q [M, heads, d], keys and values [kv, 1, L, d] -> [M, heads * d]. The kernel's batch is kv."""
        rows, kv, group, d = q.shape[0], self.kv_heads, self.group, self.head_dim
        if rows == 1:
            return self._weigh(q.view(kv, 1, group, d), keys, values, mask).view(1, -1)
        q = q.view(rows, kv, group, d)
        if rows > FOLD_ROWS:
            shape = (kv, group, keys.shape[2], d)  # the heads of a group read the same keys: a view, no copy
            keys, values = keys.expand(shape), values.expand(shape)
            y = self._weigh(q.permute(1, 2, 0, 3), keys, values, mask)
            return y.permute(2, 0, 1, 3).reshape(rows, -1)
        q = q.transpose(0, 1).reshape(kv, 1, rows * group, d)
        y = self._weigh(q, keys, values, mask)
        return y.view(kv, rows, group * d).transpose(0, 1).reshape(rows, -1)

    def _weigh(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Softmax(q k) v of q [kv, 1, M * group, d] or [kv, group, M, d], in that shape."""
        if self.sinks is None:
            return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=self.scale)
        kv, heads, rows, _ = q.shape
        sinks = self.sinks.view(kv, self.group, 1, 1)
        if heads != self.group:  # folded: the heads of a group follow each other within a row
            sinks = sinks.squeeze(-1).repeat(1, rows // self.group, 1)[:, None]
        return attend_with_sinks(q, keys, values, mask, sinks, self.scale)


class GatedMlp:
    """down(act(gate(x)) * up(x)).

    Args:
        gate_up: [2 * I, width]: gate, up stacked.
        down: [width, I].
        width: I.
        dtype, device: Of the activations.
    """

    def __init__(
        self,
        gate_up: Linear,
        down: Linear,
        activation: Literal["silu", "gelu_tanh"],
        width: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.gate_up, self.down, self.gelu = gate_up, down, activation == "gelu_tanh"
        self.nbytes = gate_up.nbytes + down.nbytes
        self.kernel = Gate(width, activation, dtype) if has_kernels(device, dtype) else None

    def __call__(self, x: Tensor) -> Tensor:
        if self.kernel is not None:
            return self.down(self.kernel(self.gate_up(x)))
        gate, up = self.gate_up(x).chunk(2, -1)
        gate = F.gelu(gate, approximate="tanh") if self.gelu else F.silu(gate)
        return self.down(gate.mul_(up))
