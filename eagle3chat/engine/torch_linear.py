"""Matrix products and embedding tables in the dtypes that the backend runs in.

Each takes activations [M, K] and gives [M, N]. Which one a weight becomes is decided once, when it is
loaded; a pass only calls it. Weights that read the same input are stacked along N by `linear`, since a
pass on a CPU is bound by the number of small operations. Knows no model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from eagle3chat.engine.torch_weights import Affine, Weight, dense
from eagle3chat.kernels import cpu_linear, cpu_table
from eagle3chat.kernels.cpu import library
from eagle3chat.kernels.cpu_linear import CpuLinear

CPU = torch.device("cpu")
INT4_GROUPS = (32, 64, 128)  # what the int4 kernel takes and MLX writes
INT4_ROWS = 16  # it wants N in multiples of this


class Dense:
    """x @ weight.T (+ bias), weight [N, K] in the dtype of x."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight, self.bias = weight, bias
        self.nbytes = weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Blocked:
    """`Dense` for bfloat16 on a CPU with the weight reordered once into oneDNN's blocks.

    F.linear reorders on every call, which costs more than the product when M is small. The operators are
    private to torch; `usable` says whether this build has them.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.bias = bias
        self.nbytes = weight.nbytes
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 4)

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[0] == 1:  # a row alone is summed in another order than the same row among others, and not faster
            return self(torch.cat((x, x)))[:1]
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")

    @staticmethod
    def usable() -> bool:
        """Whether oneDNN can run bfloat16 here."""
        return (
            torch.backends.mkldnn.is_available()
            and hasattr(torch.ops.mkldnn, "_linear_pointwise")
            and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
        )


class Int4:
    """4-bit groups on a CPU through torch's int4pack kernel; x is bfloat16 (float32 is a slow path).

    The kernel computes w = scale * (u - 8) + c, hence c = biases + 8 * scales; both are rounded to
    bfloat16, the codes are taken as they are. The packed layout depends on the CPU and is never saved.
    """

    def __init__(self, codes: Tensor, scales: Tensor, biases: Tensor, group: int, bias: Tensor | None = None) -> None:
        scales, biases = scales.float(), biases.float()
        self.group, self.bias = group, bias
        self.packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.int().contiguous(), 1)
        both = torch.stack((scales.t(), (biases + 8.0 * scales).t()), -1)
        self.scale_and_zero = both.to(torch.bfloat16).contiguous()  # [K / group, N, 2]
        self.nbytes = self.packed.nbytes + self.scale_and_zero.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        y = torch.ops.aten._weight_int4pack_mm_for_cpu(x, self.packed, self.group, self.scale_and_zero)
        return y if self.bias is None else y + self.bias

    @staticmethod
    def fits(parts: Sequence[Weight]) -> bool:
        """Whether these weights, stacked, are one 4-bit weight that the kernel takes as it is."""
        if not all(isinstance(part, Affine) and part.bits == 4 for part in parts):
            return False
        groups = {part.group for part in parts}
        rows = sum(part.rows for part in parts)
        return len(groups) == 1 and groups <= set(INT4_GROUPS) and rows % INT4_ROWS == 0


class Int8:
    """A dense weight as 8-bit rows of its own making, on a CPU, for x in bfloat16: half of the bytes to read.

    Off by up to half of 1/127 of a row's largest weight, so it is for what may be a little wrong: the draft.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        scale = weight.float().abs().amax(-1, keepdim=True).clamp_(min=1e-12) / 127.0
        self.codes = (weight.float() / scale).round_().to(torch.int8).contiguous()
        self.scale, self.bias = scale.squeeze(-1).to(torch.bfloat16), bias
        self.nbytes = self.codes.nbytes + self.scale.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        y = torch.ops.aten._weight_int8pack_mm(x, self.codes, self.scale)
        return y if self.bias is None else y + self.bias


Linear = Dense | Blocked | CpuLinear | Int4 | Int8


def packed(parts: Sequence[Weight], bias: Tensor | None = None, wide: bool = False) -> CpuLinear | None:
    """Quantised weights, stacked, for the compiled kernels, or None where these do not serve.

    Their activations are 8 bits by groups of 32, which is off by about 1 % of the products' spread; the weights are
    taken as they are, and rows do not depend on each other's number.
    """
    first = parts[0]
    if not (cpu_linear.usable() and isinstance(first, Affine)):
        return None
    form = (first.bits, first.group)
    alike = [part for part in parts if isinstance(part, Affine) and (part.bits, part.group) == form]
    if len(alike) < len(parts) or not cpu_linear.fits(first.scales.shape[1] * first.group, first.group, first.bits):
        return None
    codes, scales = torch.cat([part.codes() for part in alike]), torch.cat([part.scales for part in alike])
    biases = torch.cat([part.biases for part in alike])
    return CpuLinear(codes, scales, biases, group=first.group, bits=first.bits, bias=bias, wide=wide)


def few_bits(
    weight: Tensor, bias: Tensor | None, *, bits: int = 8, wide: bool = False, device: torch.device = CPU
) -> Linear:
    """A dense weight [N, K] made 8-bit or 4-bit, for x in bfloat16.

    Without the compiled kernels it is 8-bit on a CPU, and never `wide`. A GPU takes K in multiples of 32 and has others
    dense.
    """
    if device.type != "cpu":
        return _few_on_gpu(weight, bias, bits, device, wide)
    if cpu_linear.usable() and weight.shape[1] % cpu_linear.BLOCK == 0:
        codes, scales, biases = cpu_linear.four_bit(weight) if bits == 4 else cpu_linear.eight_bit(weight)
        return CpuLinear(codes, scales, biases, group=cpu_linear.BLOCK, bits=bits, bias=bias, wide=wide)
    return Int8(weight, None if bias is None else bias.to(torch.bfloat16))


def _on_gpu(
    parts: Sequence[Weight], bias: Tensor | None, device: torch.device, wide: bool
) -> Callable[[Tensor], Tensor] | None:
    """Quantised weights, stacked, for the GPU's kernel; None where their forms differ or it does not take them."""
    from eagle3chat.kernels.triton_linear import GROUPS, TritonLinear

    alike = [part for part in parts if isinstance(part, Affine) and part.bits in (4, 8) and part.group in GROUPS]
    if len(alike) < len(parts) or len({(part.bits, part.group) for part in alike}) > 1:
        return None
    words = torch.cat([part.words.view(torch.int32) for part in alike]).to(device)
    scales, biases = (torch.cat([getattr(part, name) for part in alike]).to(device) for name in ("scales", "biases"))
    added = None if bias is None else bias.to(device)
    form = {"bits": alike[0].bits, "group": alike[0].group}
    return TritonLinear(words, scales, biases, bias=added, wide=wide, **form)


def _few_on_gpu(weight: Tensor, bias: Tensor | None, bits: int, device: torch.device, wide: bool) -> Linear:
    """`few_bits` for the GPU's kernel."""
    from eagle3chat.kernels.triton_linear import TritonLinear, packed_words

    if weight.shape[1] % cpu_linear.BLOCK:
        return Dense(weight.to(device, torch.bfloat16), None if bias is None else bias.to(device, torch.bfloat16))
    codes, scales, biases = cpu_linear.four_bit(weight) if bits == 4 else cpu_linear.eight_bit(weight)
    if bits == 4:  # they have such values
        scales, biases = scales.half(), biases.half()
    words = packed_words(codes, bits).to(device)
    added = None if bias is None else bias.to(device)
    form = {"bits": bits, "group": cpu_linear.BLOCK}
    return TritonLinear(words, scales.to(device), biases.to(device), bias=added, wide=wide, **form)


def linear(
    parts: Sequence[Weight],
    *,
    int4: bool,
    dtype: torch.dtype,
    device: torch.device,
    bias: Tensor | None = None,
    wide: bool = False,
) -> Linear:
    """One linear of weights that read the same input, stacked along N.

    Args:
        parts: [N_i, K] each.
        int4: Keep quantised weights as they are: parts that are all 4-bit or all 8-bit in the compiled kernels; without
            these, 4-bit ones in torch's. Dense otherwise (also with a mixed stack).
        dtype: Of the activations.
        bias: [N] or None.
        wide: Results in float32 instead of `dtype` where that is free, as it is in the compiled kernels and the GPU's.
    """
    made = packed(parts, bias, wide) if int4 and device.type == "cpu" and dtype == torch.bfloat16 else None
    if made is not None:
        return made
    if int4 and device.type == "cuda" and (on_gpu := _on_gpu(parts, bias, device, wide)) is not None:
        return on_gpu
    bias = None if bias is None else bias.to(device, dtype)
    if int4 and device.type == "cpu" and Int4.fits(parts):
        codes = torch.cat([part.codes() for part in parts])
        scales = torch.cat([part.scales.float() for part in parts])
        return Int4(codes, scales, torch.cat([part.biases.float() for part in parts]), parts[0].group, bias)
    weight = torch.cat([dense(part).to(dtype) for part in parts]) if len(parts) > 1 else dense(parts[0]).to(dtype)
    if dtype == torch.bfloat16 and device.type == "cpu" and Blocked.usable():
        return Blocked(weight, bias)
    return Dense(weight.to(device).contiguous(), bias)


class Table:
    """Embedding rows [V, H]; ids [M] -> [M, H].

    Args:
        dtype: Of what is read; None: the weight's own.
    """

    def __init__(self, weight: Tensor, dtype: torch.dtype | None = None) -> None:
        self.weight, self.dtype = weight, dtype or weight.dtype
        self.nbytes = weight.nbytes

    def __call__(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight).to(self.dtype)


TABLE_ROWS = 16  # more come from a prompt: torch's operations check the ids


class CodeTable:
    """8-bit embedding rows, made dense when they are read: exact in float32, then rounded to `dtype`."""

    def __init__(self, weight: Affine, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.group = dtype, weight.group
        self.codes = weight.codes().to(device)
        # [V, 2, K / group, 1]: scales, biases, ready to be spread over their groups
        self.scale_and_bias = torch.stack((weight.scales, weight.biases), 1)[..., None].float().to(device)
        self.nbytes = self.codes.nbytes + self.scale_and_bias.nbytes
        able = device.type == "cpu" and dtype in cpu_table.DTYPES and library() is not None
        self.kernel = cpu_table.TableRows(self.codes, self.scale_and_bias, self.group, dtype) if able else None

    def __call__(self, ids: Tensor) -> Tensor:
        if self.kernel is not None and ids.shape[0] <= TABLE_ROWS:
            return self.kernel(ids)
        scale, bias = self.scale_and_bias.index_select(0, ids).unbind(1)
        codes = self.codes.index_select(0, ids).float().view(ids.shape[0], -1, self.group)
        return codes.mul_(scale).add_(bias).view(ids.shape[0], -1).to(self.dtype)


class PackedTable:
    """Quantised embedding rows of any width as they are stored, unpacked when they are read as `CodeTable` does."""

    def __init__(self, weight: Affine, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.bits, self.group = dtype, weight.bits, weight.group
        words = weight.words.view(torch.int32)  # torch reads rows of this type
        self.parts = [part.to(device, copy=True) for part in (words, weight.scales, weight.biases)]
        self.nbytes = sum(part.nbytes for part in self.parts)

    def __call__(self, ids: Tensor) -> Tensor:
        rows = [part.index_select(0, ids) for part in self.parts]
        return Affine(*rows, self.bits, self.group).dense().to(self.dtype)


Rows = Table | CodeTable | PackedTable


def embedding(weight: Weight, head: Linear | None, *, dtype: torch.dtype, device: torch.device) -> Rows:
    """The table of a weight [V, H]; shares memory with a tied `head` where that one is plain dense."""
    if isinstance(head, Dense):
        return Table(head.weight)
    if isinstance(weight, Affine):
        return CodeTable(weight, dtype, device) if weight.bits == 8 else PackedTable(weight, dtype, device)
    return Table(weight.to(device, dtype))
