"""Small random bundles for tests: complete, valid, and with a draft that is right some of the time.

The target is close to a Markov chain: its embedding lies in a subspace of as many dimensions as one attention
of the draft can carry, its layers disturb the residual stream by context, and its head is random. The draft's
attention looks at its own row (the newest token) and passes that token's embedding on, so with the target's
own norm and head rows it guesses what the undisturbed target would say. `agree` scales the disturbance down.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from eagle3chat.engine.affine import GROUP, pack
from eagle3chat.engine.bundle import write_manifest
from eagle3chat.engine.config import DraftConfig, Manifest, Quantization, Rope, TargetConfig
from eagle3chat.engine.layout import draft_tensors, target_modules, target_vectors
from eagle3chat.engine.tensor_file import LazyTensor, write_tensors

Array = npt.NDArray[np.float32]
DType = Literal["F32", "F16", "BF16"]
CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_bundle(
    directory: Path,
    *,
    seed: int = 0,
    vocab: int = 320,
    draft_vocab: int | None = None,
    hidden: int = 64,
    intermediate: int = 96,
    layers: int = 4,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    draft: bool = True,
    quantized: bool = False,
    taps: Sequence[int] = (1, 2, 3),
    qk_norm: bool = False,
    attention_bias: bool = False,
    tied: bool = False,
    dtype: DType = "F32",
    agree: float = 0.8,
    rope: Rope | None = None,
    max_seq_len: int = 256,
    max_prefill: int = 32,
    default_chain: int = 3,
    max_chain: int = 8,
    norm_before_residual: bool = False,
    norm_output: bool = False,
    draft_head_dim: int | None = None,
    own_embedding: bool = False,
    sharp: float = 6.0,
    template: str = "model",
) -> Path:
    """Write a bundle to `directory`/bundle and return its path.

    `draft_vocab` None: seven ids of every eight. `agree` 0..1: how alike draft and target are. `sharp`: the
    spread (standard deviation) of the logits. `quantized`: matrices of 4 bits, the embedding of 8, groups of 32.
    `draft_head_dim`: other than the target's; the draft then has the same number of heads.
    """
    rng = np.random.default_rng(seed)
    target = TargetConfig(
        family="qwen3" if qk_norm else "qwen2" if attention_bias else "llama",
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rms_eps=1e-5,
        rope=rope or Rope(),
        max_position=max_seq_len,
        tie_embeddings=tied,
        qk_norm=qk_norm,
        attention_bias=attention_bias,
    )
    head = DraftConfig(
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=draft_head_dim or head_dim,
        rms_eps=1e-5,
        rope=Rope(theta=10000.0),
        draft_vocab_size=draft_vocab or max(16, vocab * 7 // 128 * 16),
        target_hidden_size=hidden,
        taps=tuple(taps),
        own_embedding=own_embedding,
        norm_before_residual=norm_before_residual,
        norm_output=norm_output,
    )
    path = Path(directory) / "bundle"
    weights = _target_weights(rng, target, agree, sharp)
    (path / "target").mkdir(parents=True)
    _write(path / "target" / "model.safetensors", weights, dtype, target if quantized else None)
    (path / "target" / "config.json").write_text(json.dumps(_hugging_face(target, quantized)))
    if draft:
        (path / "draft").mkdir()
        ids, guesses = _draft_weights(rng, head, weights)
        _write(path / "draft" / "model.safetensors", guesses, dtype, None, ids)
    tokenizer = json.dumps(tiny_tokenizer(vocab)).encode()
    (path / "tokenizer.json").write_bytes(tokenizer)
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": CONTROLS[2], "unk_token": CONTROLS[0]}))
    (path / "chat_template.jinja").write_text(TEMPLATE)
    quantization = Quantization(overrides=(("model.embed_tokens", 32, 8),)) if quantized else None
    manifest = Manifest(
        name="tiny",
        draft_name="tiny-eagle3" if draft else "",
        family=target.family,
        target=target,
        draft=head if draft else None,
        quantization=quantization,
        default_chain=default_chain if draft else 0,
        max_chain=max_chain if draft else 0,
        min_prefill=1,
        max_prefill=max_prefill,
        max_seq_len=max_seq_len,
        template=template,
        bos_id=-1,
        stop_ids=(2, 0),
        tokenizer_sha256=hashlib.sha256(tokenizer).hexdigest(),
        sources=(),
        command="tiny_bundle",
        created="2026-01-01T00:00:00+00:00",
        version="0",
    )
    write_manifest(path, manifest)
    return path


def _hugging_face(config: TargetConfig, quantized: bool) -> dict[str, object]:
    """target/config.json, as export writes it."""
    rope: dict[str, object] = {"rope_type": config.rope.kind, "factor": config.rope.factor}
    if config.rope.kind == "llama3":
        rope |= {"low_freq_factor": config.rope.low_freq_factor, "high_freq_factor": config.rope.high_freq_factor}
        rope |= {"original_max_position_embeddings": config.rope.original_max_position}
    packed = {"group_size": GROUP, "bits": 4, "model.embed_tokens": {"group_size": GROUP, "bits": 8}}
    return {
        "model_type": config.family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_eps,
        "rope_theta": config.rope.theta,
        "rope_scaling": None if config.rope.kind == "default" else rope,
        "max_position_embeddings": config.max_position,
        "tie_word_embeddings": config.tie_embeddings,
    } | ({"quantization": packed} if quantized else {})


def tiny_tokenizer(vocab: int) -> dict[str, object]:
    """A byte-level BPE tokenizer.json of `vocab` tokens: three control tokens, the bytes, then pairs of letters.

    Below 259 tokens it covers only the first bytes of its order: letters, space, digits, punctuation.
    """
    order = [*b"etaoinshrdlucmfwypvbgkjqxz ETAOINSHRDLUCMFWYPVBGKJQXZ\n0123456789.,!?;:'\"-()<|>_/"]
    order += [b for b in range(256) if b not in set(order)]
    symbols = _byte_symbols()
    tokens = [*CONTROLS, *(symbols[b] for b in order)][:vocab]
    ranked = [symbols[b] for b in order]
    missing = max(0, vocab - len(tokens))
    diagonals = ((ranked[i], ranked[total - i]) for total in range(256) for i in range(total + 1))
    merges = list(itertools.islice(diagonals, missing))
    tokens += [a + b for a, b in merges]
    assert len(tokens) == vocab
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": c, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
            | {"special": True}
            for i, c in enumerate(CONTROLS)
        ],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [list(pair) for pair in merges],
        },
    }


def _byte_symbols() -> dict[int, str]:
    """Byte to the printable character that stands for it in byte-level BPE."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in shown]
    return {b: chr(b) for b in shown} | {b: chr(256 + i) for i, b in enumerate(hidden)}


def _target_weights(rng: np.random.Generator, config: TargetConfig, agree: float, sharp: float) -> dict[str, Array]:
    width = config.hidden_size
    weights: dict[str, Array] = {}
    carried = min(width, config.num_kv_heads * config.head_dim) - 2
    for module, rows, columns in target_modules(config):
        weights[f"{module}.weight"] = _normal(rng, (rows, columns), columns**-0.5)
    # Disturbance by context: what a layer adds.
    for index in range(config.num_layers):
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            weights[f"model.layers.{index}.{name}.weight"] *= (1.0 - agree) / config.num_layers**0.5
        for name in ("self_attn.q_proj", "self_attn.k_proj"):
            weights[f"model.layers.{index}.{name}.weight"] *= 2.0  # attention that chooses
    for name, shape in target_vectors(config):
        bias = name.endswith(".bias")
        weights[name] = _normal(rng, shape, 0.3) if bias else 1.0 + _normal(rng, shape, 0.1)
    embedding = np.zeros((config.vocab_size, width), np.float32)
    embedding[:, 0] = 1.0  # the same for all tokens: what the draft's queries and keys look at
    directions = _normal(rng, (config.vocab_size, carried), 1.0)
    lengths = np.linalg.norm(directions, axis=1, keepdims=True)  # all alike, so that no key outshines the own row's
    embedding[:, 1 : 1 + carried] = directions * (carried**0.5 / lengths)
    weights["model.embed_tokens.weight"] = embedding
    if not config.tie_embeddings:
        weights["lm_head.weight"] *= sharp
    return weights


def _draft_weights(
    rng: np.random.Generator, config: DraftConfig, target: dict[str, Array]
) -> tuple[npt.NDArray[np.int64], dict[str, Array]]:
    width, head = config.hidden_size, config.head_dim
    weights = {n: _normal(rng, s, 0.05 * s[-1] ** -0.5) for n, s in draft_tensors(config).items() if n != "target_ids"}
    for name in weights:
        if "norm" in name:
            weights[name] = np.ones_like(weights[name])
    vocab = len(target["model.embed_tokens.weight"])
    ids = np.sort(rng.permutation(vocab)[: config.draft_vocab_size]).astype(np.int64)
    fc = weights["fc.weight"]
    last = fc.shape[1] - config.target_hidden_size
    for i in range(min(width, config.target_hidden_size)):
        fc[i, last + i] += 1.3
    # Queries and keys read the constant coordinate into the fastest rotary pairs: the own row wins.
    fast = [i + half for i in range(min(3, head // 2)) for half in (0, head // 2)]
    weights["layers.0.self_attn.q_proj.weight"][[h * head + i for h in range(config.num_heads) for i in fast], 0] = 6.0
    keys = [h * head + i for h in range(config.num_kv_heads) for i in fast]
    weights["layers.0.self_attn.k_proj.weight"][keys, 0] = 6.0
    # Values carry the embedding's coordinates 1.., head_dim a kv head; the first query head of each returns them.
    shared = config.num_heads // config.num_kv_heads
    value, out = weights["layers.0.self_attn.v_proj.weight"], weights["layers.0.self_attn.o_proj.weight"]
    # They take most of the feature away, so that the newest token wins over the one before it.
    for i in range(min(width - 1, config.num_kv_heads * head)):
        value[i, 1 + i] += 1.0
        value[i, width + 1 + i] -= 0.9
        out[1 + i, (i // head) * shared * head + i % head] += 1.0
    weights["norm.weight"] = target["model.norm.weight"].copy()
    rows = target.get("lm_head.weight", target["model.embed_tokens.weight"])
    weights["lm_head.weight"] = rows[ids].copy()
    if config.own_embedding:
        weights["embed_tokens.weight"] = target["model.embed_tokens.weight"].copy()
    return ids, weights


def _normal(rng: np.random.Generator, shape: tuple[int, ...], spread: float) -> Array:
    return (rng.standard_normal(shape) * spread).astype(np.float32)


def _write(
    file: Path,
    weights: dict[str, Array],
    dtype: DType,
    quantized: TargetConfig | None,
    target_ids: npt.NDArray[np.int64] | None = None,
) -> None:
    """Matrices of `quantized` in MLX affine form, the embedding with 8 bits; the rest dense of type `dtype`."""
    tensors: list[LazyTensor] = []
    if target_ids is not None:
        tensors.append(_tensor("target_ids", "I64", target_ids))
    matrices = {f"{module}.weight" for module, _, _ in target_modules(quantized)} if quantized else set()
    for name, weight in weights.items():
        if name not in matrices:
            tensors.append(_dense(name, weight, dtype))
            continue
        module = name.removesuffix(".weight")
        words, scales, biases = quantize(weight, 8 if module == "model.embed_tokens" else 4)
        tensors.append(_tensor(name, "U32", words))
        tensors.append(_tensor(f"{module}.scales", "F16", scales))
        tensors.append(_tensor(f"{module}.biases", "F16", biases))
    write_tensors(file, tensors)


def quantize(
    weight: Array, bits: int
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float16], npt.NDArray[np.float16]]:
    """MLX affine of a matrix [N, K] by the range of each group of 32; every other group has a negative scale."""
    groups = weight.reshape(len(weight), -1, GROUP)
    low, high = groups.min(-1), groups.max(-1)
    flip = (np.arange(groups.shape[1]) % 2 == 1)[None, :]
    scales = np.where(flip, low - high, high - low).astype(np.float16) / np.float16(2**bits - 1)
    scales = np.where(np.abs(scales) < 1e-4, np.float16(1e-4), scales).astype(np.float16)
    biases = np.where(flip, high, low).astype(np.float16)
    codes = np.round((groups - biases[..., None].astype(np.float32)) / scales[..., None].astype(np.float32))
    codes = np.clip(codes, 0, 2**bits - 1).astype(np.uint8).reshape(weight.shape)
    return pack(codes, bits), scales, biases


def _dense(name: str, weight: Array, dtype: DType) -> LazyTensor:
    if dtype == "BF16":
        bits = np.ascontiguousarray(weight).view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return _tensor(name, "BF16", rounded.astype("<u2"))
    return _tensor(name, dtype, weight.astype("<f2" if dtype == "F16" else "<f4"))


def _tensor(name: str, dtype: str, values: npt.NDArray[np.generic]) -> LazyTensor:
    return LazyTensor(name, dtype, values.shape, values.tobytes)
