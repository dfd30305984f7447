"""A pair of any size out of thin air, on the device: no files, no tokenizer, nothing but torch.

The target is close to a Markov chain, as the tests' tiny pair is (tests/tiny.py says why): its embedding lies in a
subspace that one attention of the draft can carry, its layers disturb the stream, its head is random and its most
probable tokens are the first ones, which the draft's own head has. The draft passes the newest token's embedding on, so
it is right where the disturbance is small: `disturb` sets how much.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from types import SimpleNamespace
from unittest.mock import patch

import torch
from torch import Tensor

from eagle3chat.engine import torch_backend
from eagle3chat.engine.config import AttentionKind, DraftConfig, Manifest, Quantization, Rope, TargetConfig
from eagle3chat.engine.torch_backend import TorchBackend
from eagle3chat.engine.torch_weights import Affine, Weight, dense

GROUP = 32
SMALL = 1024  # tokens of a vocabulary
CODES = 16
CODE_SPREAD = 4.61  # standard deviation of a code drawn from 0 .. 15
SHARP = 6.0  # standard deviation of the logits of tokens that the draft has, SHARP / 2 of the others


@dataclass(frozen=True, slots=True)
class Size:
    """A pair's configuration."""

    target: TargetConfig
    draft: DraftConfig
    context: int


def _size(target: TargetConfig, draft_vocab: int, context: int) -> Size:
    width, layers = target.hidden_size, target.num_layers
    taps = (1, layers // 2, layers - 1)
    heads, kv = target.num_heads, max(1, min(target.num_heads, 1024 // target.head_dim))
    draft = DraftConfig(
        width, target.intermediate_size, heads, kv, target.head_dim, 1e-5, Rope(), draft_vocab, width, taps
    )
    return Size(target, draft, context)


_TINY = TargetConfig("llama", 384, 64, 96, 4, 4, 2, 16, 1e-5, Rope(), 256, False)
_LARGE = TargetConfig("llama", 128256, 4096, 14336, 32, 32, 8, 128, 1e-5, Rope(theta=5e5), 8192, False)
_WINDOWED = replace(
    _TINY,
    family="gemma3",
    num_layers=6,
    layer_types=("sliding", "sliding", "full") * 2,
    sliding=AttentionKind(2, 16, Rope(), window=8),
    activation="gelu_tanh",
    qk_norm=True,
    logit_softcap=30.0,
)
SIZES = {
    "tiny": _size(_TINY, 320, 256),
    "windowed": _size(_WINDOWED, 320, 256),
    "8b": _size(_LARGE, 32000, 8192),
}


class Synthetic:
    """What `Checkpoint` gives, made when it is asked for; the same numbers for the same name.

    Args:
        role: "target" or "draft".
        int4: The target's matrices have 4 bits.
    """

    def __init__(self, size: Size, role: str, device: torch.device, dtype: torch.dtype, int4: bool) -> None:
        self.size, self.role, self.device, self.dtype, self.int4 = size, role, device, dtype, int4
        # Devices draw different numbers: a small pair, which is compared with a CPU's, is drawn there.
        self.maker = torch.device("cpu") if size.target.vocab_size < SMALL else device

    def __contains__(self, name: str) -> bool:
        return True

    def close(self) -> None:
        """Nothing is open."""

    def _random(self, name: str, *shape: int) -> Tensor:
        made = torch.randn(*shape, generator=self._generator(name), device=self.maker, dtype=self.dtype)
        return made.to(self.device)

    def _generator(self, name: str) -> torch.Generator:
        return torch.Generator(self.maker).manual_seed(zlib.crc32(f"{self.role} {name}".encode()))

    def tensor(self, name: str, *shape: int) -> Tensor:
        """A vector."""
        if name == "target_ids":
            return torch.arange(*shape, device=self.device)
        if self.role == "draft":
            return self._target().tensor("model.norm.weight", *shape) if name == "norm.weight" else self._ones(*shape)
        return 1.0 + 0.1 * self._random(name, *shape)

    def _ones(self, *shape: int) -> Tensor:
        return torch.ones(*shape, device=self.device, dtype=self.dtype)

    def _target(self) -> Synthetic:
        return Synthetic(self.size, "target", self.device, self.dtype, self.int4)

    def weight(self, module: str, rows: int, columns: int) -> Weight:
        """A matrix."""
        if self.role == "draft":
            return self._drafted(module, rows, columns)
        if module == "model.embed_tokens":
            return self._embedding(rows, columns)
        spread = columns**-0.5
        if module.endswith(("o_proj", "down_proj")):
            spread *= 0.3 * self.size.target.num_layers**-0.5
        if module.endswith(("q_proj", "k_proj")):
            spread *= 2.0
        made = self._affine(module, rows, columns, spread) if self.int4 else self._random(module, rows, columns)
        if module == "lm_head":
            factor = torch.full((rows, 1), SHARP / 2.0, device=self.device, dtype=self.dtype)
            factor[: self.size.draft.draft_vocab_size] = SHARP
            if isinstance(made, Affine):
                return replace(made, scales=made.scales * factor, biases=made.biases * factor)
            return made * factor * spread
        return made if self.int4 else made * spread

    def _affine(self, module: str, rows: int, columns: int, spread: float) -> Affine:
        options = {"generator": self._generator(module), "device": self.maker, "dtype": torch.int32}
        words = torch.randint(-(2**31), 2**31, (rows, columns * 4 // 32), **options).to(self.device)
        scales = torch.full((rows, columns // GROUP), spread / CODE_SPREAD, device=self.device, dtype=torch.bfloat16)
        return Affine(words, scales, scales * (-(CODES - 1) / 2), 4, GROUP)

    def _embedding(self, rows: int, columns: int) -> Tensor:
        carried = min(columns, self.size.draft.num_kv_heads * self.size.draft.head_dim) - 2
        made = torch.zeros(rows, columns, device=self.device, dtype=self.dtype)
        made[:, 0] = 1.0
        directions = self._random("embedding", rows, carried).float()
        made[:, 1 : 1 + carried] = torch.nn.functional.normalize(directions, dim=1) * carried**0.5
        return made

    def _drafted(self, module: str, rows: int, columns: int) -> Tensor:
        draft = self.size.draft
        width, d, kv = draft.hidden_size, draft.head_dim, draft.num_kv_heads
        if module == "lm_head":
            whole = self._target().weight("lm_head", self.size.target.vocab_size, columns)
            return _first(whole, rows).to(self.dtype)
        made = 0.05 * columns**-0.5 * self._random(module, rows, columns)
        fast = [i + half for i in range(min(3, d // 2)) for half in (0, d // 2)]
        places = torch.arange(min(width - 1, kv * d), device=self.device)
        if module == "fc":
            last = torch.arange(width, device=self.device)
            made[last, columns - width + last] += 1.3
        elif module.endswith(("q_proj", "k_proj")):
            made[[head * d + i for head in range(rows // d) for i in fast], 0] = 6.0
        elif module.endswith("v_proj"):
            made[places, 1 + places] += 1.0
            made[places, width + 1 + places] -= 0.9
        elif module.endswith("o_proj"):
            made[1 + places, (places // d) * (draft.num_heads // kv) * d + places % d] += 1.0
        return made


def _first(weight: Weight, rows: int) -> Tensor:
    """The first rows of a matrix, float32."""
    if isinstance(weight, Affine):
        weight = replace(weight, **{name: getattr(weight, name)[:rows] for name in ("words", "scales", "biases")})
        return dense(weight)
    return weight[:rows].float()


def open_synthetic(size: Size, device: str, dtype: str, **options: object) -> TorchBackend:
    """A backend with this pair.

    Args:
        dtype: "float32", "bfloat16" or "int4".
        options: Of TorchBackend.
    """
    quantization = Quantization() if dtype == "int4" else None
    numbers = {"default_chain": 3, "max_chain": 8, "min_prefill": 1, "max_prefill": 512, "max_seq_len": size.context}
    texts = {"name": "synthetic", "draft_name": "constructed", "family": size.target.family, "template": "chatml"}
    more = {"bos_id": -1, "stop_ids": (), "tokenizer_sha256": "", "sources": (), "command": "", "created": ""}
    manifest = Manifest(
        target=size.target, draft=size.draft, quantization=quantization, version="", **numbers, **texts, **more
    )
    bundle = SimpleNamespace(manifest=manifest, target_files=("target",), draft_file="draft")
    kind = torch.float32 if dtype == "float32" else torch.bfloat16

    def made(files: object) -> Synthetic:
        role = "draft" if list(files) == ["draft"] else "target"
        return Synthetic(size, role, torch.device(device), kind, dtype == "int4")

    with patch.object(torch_backend, "Checkpoint", made):
        return TorchBackend(bundle, device=device, dtype=dtype, **options)


@torch.inference_mode()
def disturb(backend: TorchBackend, factor: float) -> None:
    """Multiply what every layer of the target adds by a factor: below 1 the draft is right more often."""
    for layer in backend._target.layers:
        for linear in (layer.attention.out, layer.mlp.down):
            parts = (linear.scales, linear.biases) if hasattr(linear, "scales") else (linear.weight,)
            for part in parts:
                part.mul_(factor)
