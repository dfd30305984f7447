"""Mixtures of experts: a router that chooses a few MLPs for each row, and their weighted sum.

Rows are positions, [M, width]. Only the chosen experts are computed. Where starting an operation is what costs (not on
a CPU) a pass of few rows gathers their weights; else the rows are grouped by expert. A row's numbers do not hang on the
others: each chosen expert's result has a place of its own, and the sum runs over the choice's order. Knows no layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from eagle3chat.engine.config import Experts, TargetConfig
from eagle3chat.engine.expert_layout import EXPERT_MODULES
from eagle3chat.engine.torch_layers import Norm
from eagle3chat.engine.torch_linear import Dense, Linear, linear
from eagle3chat.engine.torch_weights import Affine, Checkpoint, dense

GATHER_ROWS = 16  # passes up to this long gather, where gathering is possible and pays
SIGMOID_GAIN = 1.702  # of gpt-oss's gate


@dataclass(frozen=True, slots=True)
class Router:
    """Chooses the experts of a row, in float32 whatever the rows' dtype: a choice must not hang on rounding.

    The rules are those of transformers' modelling code: "qwen3" softmax over all experts, then the largest, made to
    sum to 1 if the model says so; "gpt_oss" the largest scores, then softmax over them alone; "gemma4" the rows are
    normed, then as "qwen3" with `normalize`, then each expert's share times a number of its own.

    Args:
        weight: Float32 [E, width]; gemma4: with the rows' scale and 1 / sqrt(width) in its columns.
        bias: Float32 [E] or None (gpt_oss).
        gain: Float32 [E] or None (gemma4): a number of each expert's own.
        eps: Of gemma4's norm.
    """

    kind: Experts
    weight: Tensor
    bias: Tensor | None = None
    gain: Tensor | None = None
    eps: float = 0.0

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [M, width] -> the experts [M, k] int64, the largest share first, and their shares [M, k] float32."""
        x = x.float()
        if self.kind.kind == "gemma4":
            x = F.rms_norm(x, (x.shape[-1],), None, self.eps)
        scores = F.linear(x, self.weight, self.bias)
        if self.kind.kind == "gpt_oss":
            largest, chosen = scores.topk(self.kind.per_token, -1)
            return chosen, largest.softmax(-1)
        shares, chosen = scores.softmax(-1).topk(self.kind.per_token, -1)
        if self.kind.normalize:
            shares = shares / shares.sum(-1, keepdim=True)
        return chosen, shares if self.gain is None else shares * self.gain[chosen]


@dataclass(frozen=True, slots=True)
class Gate:
    """What stands between an expert's two products: [.., 2 * I], gate then up, -> [.., I].

    "gpt_oss" clamps both to `limit` (the gate from above alone), opens the gate by sigmoid(1.702 gate), and counts up
    from -1.
    """

    kind: Experts
    gelu: bool = False

    def __call__(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, -1)
        if self.kind.kind != "gpt_oss":
            return (F.gelu(gate, approximate="tanh") if self.gelu else F.silu(gate)) * up
        if self.kind.limit:
            gate, up = gate.clamp(max=self.kind.limit), up.clamp(-self.kind.limit, self.kind.limit)
        return (up + 1.0) * gate * torch.sigmoid(SIGMOID_GAIN * gate)


class Stack:
    """The same matrix of every expert: one `Linear` each, which share memory with one tensor where they are dense.

    Args:
        linears: [N, K] each, with or without a bias.
        whole: [E, N, K] that these are views of, and [E, N] of their biases; None: they are not.
    """

    def __init__(self, linears: Sequence[Linear], whole: tuple[Tensor, Tensor | None] | None = None) -> None:
        self.linears, self.whole = list(linears), whole
        self.nbytes = sum(linear.nbytes for linear in linears)

    @classmethod
    def dense(cls, weight: Tensor, bias: Tensor | None = None) -> Stack:
        """Of one tensor [E, N, K] and its biases [E, N]."""
        biases = [None] * len(weight) if bias is None else list(bias)
        return cls([Dense(*pair) for pair in zip(weight, biases, strict=True)], (weight, bias))

    def gathered(self, x: Tensor, chosen: Tensor) -> Tensor:
        """Rows x [R, K] by the experts chosen [R] -> [R, N]."""
        weight, bias = self.whole
        y = torch.bmm(weight.index_select(0, chosen), x[:, :, None]).squeeze(-1)
        return y if bias is None else y + bias.index_select(0, chosen)


class Mixture:
    """The experts of one layer.

    Args:
        gate_up: [2 * I, width] each: gate, up stacked.
        down: [width, I] each.
    """

    def __init__(self, router: Router, gate_up: Stack, down: Stack, gate: Callable[[Tensor], Tensor]) -> None:
        self.router, self.gate_up, self.down, self.gate = router, gate_up, down, gate
        self.nbytes = gate_up.nbytes + down.nbytes + router.weight.nbytes
        self.gathers = gate_up.whole is not None and down.whole is not None and router.weight.device.type != "cpu"

    def __call__(self, x: Tensor, routed: Tensor | None = None) -> Tensor:
        """x [M, width] -> [M, width]. The router looks at `routed` where that is another view of the rows (gemma4)."""
        chosen, shares = self.router(x if routed is None else routed)
        rows, count = chosen.shape
        results = self._gathered(x, chosen) if self.gathers and rows <= GATHER_ROWS else self._grouped(x, chosen)
        weighted = results.view(rows, count, -1).float() * shares[..., None]
        return weighted.sum(1).to(x.dtype)

    def _gathered(self, x: Tensor, chosen: Tensor) -> Tensor:
        """[M * k, width]: the weights of the chosen experts are copied side by side; nothing waits for the device."""
        flat = chosen.reshape(-1)
        gate_up = self.gate_up.gathered(x.repeat_interleave(chosen.shape[1], 0), flat)
        return self.down.gathered(self.gate(gate_up), flat)

    def _grouped(self, x: Tensor, chosen: Tensor) -> Tensor:
        """[M * k, width]: each expert that was chosen computes its rows in one go."""
        count = chosen.shape[1]
        flat = chosen.reshape(-1)
        order = flat.argsort(stable=True)
        results = x.new_empty(flat.shape[0], x.shape[1])
        sizes = torch.bincount(flat, minlength=len(self.gate_up.linears)).tolist()
        start = 0
        for expert, size in enumerate(sizes):
            if size:
                places = order[start : start + size]
                gate_up = self.gate_up.linears[expert](x[places // count])
                results[places] = self.down.linears[expert](self.gate(gate_up))
                start += size
        return results


class ExpertsBeside:
    """Experts that run beside an MLP, each side with a norm of its own (Gemma 4 26B-A4B).

    Args:
        before: Of the stream that the experts read; the router reads it as it is.
        mlp_after, after: Of what the MLP and what the experts give.
    """

    def __init__(self, mixture: Mixture, before: Norm, mlp_after: Norm, after: Norm) -> None:
        self.mixture, self.before, self.mlp_after, self.after = mixture, before, mlp_after, after
        self.nbytes = mixture.nbytes

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """The stream x [M, width] before the MLP's norm, and what the MLP gave, y -> both sides' sum."""
        return self.mlp_after(y) + self.after(self.mixture(self.before(x), x))


def load_mixture(
    checkpoint: Checkpoint, at: str, config: TargetConfig, *, int4: bool, dtype: torch.dtype, device: torch.device
) -> Mixture:
    """The experts of the layer `at` ("model.layers.3").

    Args:
        int4: Keep quantised experts as they are where the kernels take them; dense otherwise.

    Raises:
        BundleError: A tensor is missing or misshapen.
    """
    kind, width = config.experts, config.hidden_size
    router, experts = (f"{at}.{part}" for part in EXPERT_MODULES[kind.kind])
    inner = kind.intermediate_size
    sizes = {"gate_proj": (inner, width), "up_proj": (inner, width), "down_proj": (width, inner)}
    parts = {name: checkpoint.stack(f"{experts}.{name}", kind.count, *size) for name, size in sizes.items()}
    biases = {}
    if kind.kind == "gpt_oss":
        biases = {name: checkpoint.tensor(f"{experts}.{name}.bias", kind.count, sizes[name][0]) for name in sizes}

    def stacked(*names: str) -> Stack:
        bias = torch.cat([biases[name] for name in names], 1) if biases else None
        return _stack([parts[name] for name in names], bias, int4=int4, dtype=dtype, device=device)

    return Mixture(
        _load_router(checkpoint, router, config, device),
        stacked("gate_proj", "up_proj"),
        stacked("down_proj"),
        Gate(kind, config.activation == "gelu_tanh"),
    )


def _load_router(checkpoint: Checkpoint, module: str, config: TargetConfig, device: torch.device) -> Router:
    kind = config.experts
    weight = dense(checkpoint.weight(module, kind.count, config.hidden_size))
    bias = gain = None
    if kind.kind == "gpt_oss":
        bias = checkpoint.tensor(f"{module}.bias", kind.count).float().to(device)
    if kind.kind == "gemma4":
        at = module.removesuffix(".proj")
        weight = weight * checkpoint.tensor(f"{at}.scale", config.hidden_size).float() * config.hidden_size**-0.5
        gain = checkpoint.tensor(f"{at}.per_expert_scale", kind.count).float().to(device)
    return Router(kind, weight.to(device), bias, gain, config.rms_eps)


def _stack(
    parts: Sequence[Tensor | list[Affine]],
    bias: Tensor | None,
    *,
    int4: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> Stack:
    """The matrices of `parts`, stacked along N for each expert; `bias` is [E, N]. Only a CPU keeps them quantised."""
    if device.type == "cpu":
        biases = [None] * len(parts[0]) if bias is None else bias
        rows = zip(zip(*parts, strict=True), biases, strict=True)
        return Stack([linear(own, int4=int4, dtype=dtype, device=device, bias=added) for own, added in rows])
    whole = torch.cat([_whole(part, dtype).to(device) for part in parts], 1)
    return Stack.dense(whole, None if bias is None else bias.to(device, dtype))


def _whole(part: Tensor | list[Affine], dtype: torch.dtype) -> Tensor:
    """[E, N, K] of one matrix of every expert, dense."""
    return part.to(dtype) if isinstance(part, Tensor) else torch.stack([own.dense().to(dtype) for own in part])
