"""What a bundle consists of, from its headers alone: parameters, bytes by part and precision, bytes of the caches.

Nothing is loaded. What is said of memory is a count of bytes; a program needs a little more. Knows no tensor
library.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from eagle3chat.engine.bundle import Bundle, read_tensors
from eagle3chat.engine.config import Manifest, TargetConfig
from eagle3chat.engine.layout import TARGET_IDS, group_and_bits
from eagle3chat.engine.tensor_file import ITEM_BYTES, TensorInfo

ACTIVATION_BYTES = {"float32": 4, "bfloat16": 2, "int4": 2}  # of a cached number, by the dtype that runs
QUANTISED = ("scales", "biases")


@dataclass(frozen=True, slots=True)
class Part:
    """Some of the weights, by how they are stored."""

    model: str  # "target", "draft"
    name: str  # "embedding", "head", "attention", "mlp", "experts", "norms", "fusion", "ids"
    precision: str  # "4-bit", "8-bit", "BF16", ...
    parameters: int
    size: int  # bytes

    @property
    def bits(self) -> float:
        """Bits a parameter, scales and biases included."""
        return self.size * 8 / self.parameters if self.parameters else 0.0


@dataclass(frozen=True, slots=True)
class Anatomy:
    """A bundle's parts and what a context costs."""

    parts: tuple[Part, ...]
    target_row: int  # numbers that the target caches for a position of its full-attention layers
    window_row: int  # and of its sliding layers
    window: int  # positions that those keep; 0: there are none
    draft_row: int

    def cache_bytes(self, positions: int, dtype: str) -> tuple[int, int]:
        """Bytes of the target's and the draft's cache for so many positions."""
        size = ACTIVATION_BYTES[dtype]
        sliding = self.window_row * min(positions, self.window) if self.window else 0
        return (self.target_row * positions + sliding) * size, self.draft_row * positions * size

    def weight_bytes(self, model: str) -> int:
        """Bytes of the target's or the draft's weights as stored."""
        return sum(part.size for part in self.parts if part.model == model)

    def parameters(self, model: str) -> int:
        """Of the target or the draft."""
        return sum(part.parameters for part in self.parts if part.model == model)


def dissect(bundle: Bundle) -> Anatomy:
    """Look at a bundle that passed the door.

    Raises:
        BundleError: A file went missing or was damaged since.
    """
    manifest = bundle.manifest
    parts = list(_parts("target", read_tensors(bundle.path / "target"), manifest))
    if manifest.draft is not None:
        parts += _parts("draft", read_tensors(bundle.path / "draft"), manifest)
    draft = manifest.draft
    full, sliding, window = _cached(manifest.target)
    row = 0 if draft is None else draft.num_layers * 2 * draft.num_kv_heads * draft.head_dim
    return Anatomy(tuple(parts), full, sliding, window, row)


def _cached(target: TargetConfig) -> tuple[int, int, int]:
    """Numbers a position in full and in sliding caches, and the window; layers that share keys count once."""
    full = sliding = window = 0
    for layer in {target.cache_layer(layer) for layer in range(target.num_layers)}:
        kind = target.kind(layer)
        row = 2 * kind.num_kv_heads * kind.head_dim
        if kind.window:
            sliding, window = sliding + row, kind.window
        else:
            full += row
    return full, sliding, window


def _parts(model: str, tensors: Mapping[str, TensorInfo], manifest: Manifest) -> Iterable[Part]:
    found: dict[tuple[str, str], list[int]] = {}
    for name, info in tensors.items():
        module, _, leaf = name.rpartition(".")
        size = prod(info.shape) * ITEM_BYTES[info.dtype]
        if leaf in QUANTISED and f"{module}.scales" in tensors:
            key, parameters = (_role(module), _bits(model, module, manifest)), 0
        elif info.dtype == "U32" and f"{module}.scales" in tensors:
            key = (_role(module), _bits(model, module, manifest))
            parameters = prod(info.shape) * 32 // int(key[1].split("-")[0])
        else:
            key, parameters = (_role(name if name == TARGET_IDS else module), info.dtype), prod(info.shape)
            parameters = 0 if name == TARGET_IDS else parameters
        row = found.setdefault(key, [0, 0])
        row[0] += parameters
        row[1] += size
    for (role, precision), (parameters, size) in sorted(found.items()):
        yield Part(model, role, precision, parameters, size)


def _bits(model: str, module: str, manifest: Manifest) -> str:
    quantization = manifest.quantization if model == "target" else manifest.draft_quantization
    assert quantization is not None, "the door lets no other through"
    return f"{group_and_bits(quantization, module)[1]}-bit"


def _role(module: str) -> str:
    """Which part of a model a module belongs to."""
    last = module.rpartition(".")[2]
    if module == TARGET_IDS:
        return "ids"
    if "norm" in last:
        return "norms"
    if ".experts" in module or ".router" in module or "switch" in module:
        return "experts"
    if "self_attn" in module:
        return "attention"
    if ".mlp" in module:
        return "mlp"
    if "embed" in last:
        return "embedding"
    return {"lm_head": "head", "fc": "fusion"}.get(last, "other")
