"""One random draft, written in every public layout of EAGLE-3 checkpoints.

Values are drawn by tensor name, so that whatever layouts have in common is the same in all of them, and rounded so
that float32, float16 and bfloat16 hold them alike.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle3chat.engine.config import DraftConfig, Rope, TargetConfig
from eagle3chat.engine.layout import draft_tensors
from eagle3chat.engine.tensor_file import LazyTensor, write_tensors

Tensors = dict[str, npt.NDArray[Any]]
VOCAB, WIDTH = 48, 32
IDS = np.array([0, 1, 2, 4, 5, *range(20, 34), 47], np.int64)
TARGET = TargetConfig(
    family="llama",
    vocab_size=VOCAB,
    hidden_size=WIDTH,
    intermediate_size=64,
    num_layers=12,
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
    rms_eps=1e-5,
    rope=Rope(),
    max_position=128,
    tie_embeddings=False,
)
DRAFT = DraftConfig(
    hidden_size=WIDTH,
    intermediate_size=48,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    rms_eps=1e-5,
    rope=Rope(theta=10000.0),
    draft_vocab_size=len(IDS),
    target_hidden_size=WIDTH,
    taps=(2, 6, 9),
)
"""The canonical draft. Layouts change what their flags say."""
BIASED = {"attention_bias": True, "output_bias": True, "mlp_bias": True, "fc_bias": True}
FLAT_KEYS = {
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "num_hidden_layers": "num_layers",
    "rms_norm_eps": "rms_eps",
}


@dataclass(frozen=True)
class Layout:
    """How one family of checkpoints writes a draft, and what it is."""

    draft: DraftConfig
    values: Mapping[str, Any]  # config.json
    rename: Callable[[str], str] = lambda name: name
    extra: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    without: tuple[str, ...] = ()  # canonical names that the files lack
    dtype: str = "F32"
    form: str = "single"  # "single", "shards", "pickle", "pickle shards"

    def tensors(self) -> Tensors:
        """The canonical draft, `target_ids` included."""
        return canonical_tensors(self.draft)

    def write(self, path: Path) -> Path:
        """The checkpoint in the new directory `path`."""
        path.mkdir(parents=True)
        (path / "config.json").write_text(json.dumps(self.values))
        stored: Tensors = {}
        for name, value in self.tensors().items():
            if name != "target_ids" and name not in self.without:
                stored[self.rename(name)] = value
        if "target_ids" not in self.without:
            stored["d2t"] = self.tensors()["target_ids"] - np.arange(self.draft.draft_vocab_size)
        stored |= self.extra
        WRITERS[self.form](path, stored, self.dtype)
        return path


def canonical_tensors(draft: DraftConfig) -> Tensors:
    """Float32 weights and int64 `target_ids`; the embedding where it is the draft's own."""
    shapes = draft_tensors(draft)
    if draft.own_embedding:
        shapes["embed_tokens.weight"] = (VOCAB, draft.hidden_size)
    tensors: Tensors = {name: _drawn(name, shape) for name, shape in shapes.items() if name != "target_ids"}
    tensors["target_ids"] = np.arange(VOCAB) if draft.draft_vocab_size == VOCAB else IDS
    return tensors


def target_rows() -> npt.NDArray[np.float32]:
    """[V, Ht] The target's embedding."""
    return _drawn("model.embed_tokens.weight", (VOCAB, WIDTH))


def target_head() -> npt.NDArray[np.float32]:
    """[V, Ht]"""
    return _drawn("target's lm_head", (VOCAB, WIDTH))


def _drawn(name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    value = rng.standard_normal(shape) * (1.5 * shape[-1] ** -0.5 if len(shape) > 1 else 0.3)
    value = np.asarray(value + (1.0 if "norm" in name else 0.0), np.float32)
    value[np.abs(value) < 2.0**-10] = 0.0
    return (value.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)  # eight bits of precision


def flat(draft: DraftConfig, **more: Any) -> dict[str, Any]:
    """Keys at the top, as a Llama config has them."""
    values = {key: getattr(draft, name) for key, name in FLAT_KEYS.items()}
    values |= {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_act": "silu"}
    values |= {"vocab_size": VOCAB, "draft_vocab_size": draft.draft_vocab_size, "torch_dtype": "bfloat16"}
    return values | more


def nested(draft: DraftConfig, layer: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A speculators config: the layer's keys under `transformer_layer_config`."""
    inner = flat(draft, head_dim=draft.head_dim, layer_types=["full_attention"], attention_bias=False, top_k=50)
    for key in ("architectures", "draft_vocab_size"):
        del inner[key]
    values = {
        "architectures": ["Eagle3DraftModel"],
        "auto_map": {"": "eagle3.Eagle3SpeculatorConfig"},
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "some/target"},
        },
        "draft_vocab_size": draft.draft_vocab_size,
        "eagle_aux_hidden_state_layer_ids": list(draft.taps),
        "embed_requires_grad": False,
        "norm_before_residual": draft.norm_before_residual,
        "norm_before_fc": draft.norm_before_fc,
        "fc_norm": draft.fc_norm,
        "norm_output": draft.norm_output,
        "target_hidden_size": draft.target_hidden_size if draft.hidden_size != draft.target_hidden_size else None,
        "tie_word_embeddings": False,
    }
    return values | more | {"transformer_layer_config": inner | dict(layer or {})}


def midlayer(name: str) -> str:
    """EAGLE's and SpecForge's names."""
    return name.replace("layers.0.", "midlayer.")


def sglang(name: str) -> str:
    """SGLang's names of a draft of several layers."""
    if name.startswith("layers.") and not name.startswith("layers.0."):
        _, index, rest = name.split(".", 2)
        return f"additional_layers.{int(index) - 1}.{rest.replace('input_layernorm', 'hidden_norm')}"
    return midlayer(name)


MASK = {"t2d": np.isin(np.arange(VOCAB), IDS)}
MODELOPT = {
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "next_layer_regular": True,
    "parallel_draft_step": 1,
    "parallel_draft_heads_num_layers": 1,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def _with(**flags: Any) -> DraftConfig:
    return dataclasses.replace(DRAFT, **flags)


def _verifier(draft: DraftConfig) -> Tensors:
    """What speculators may leave in a file: parts of the target."""
    return {"verifier_norm.weight": np.ones(WIDTH, np.float32), "verifier_lm_head.weight": target_head()}


def _layouts() -> dict[str, Layout]:
    head = _with(draft_vocab_size=VOCAB, own_head=False)
    redhat, gpt_oss = _with(norm_before_residual=True), _with(norm_before_fc=True, taps=(4, 8, 12))
    eagle31 = _with(fc_norm=True, norm_output=True)
    qwen3 = _with(qk_norm=True, head_dim=16, norm_before_residual=True)
    layers = _with(num_layers=3, norm_output=True)
    biased = _with(**BIASED)
    small = _with(hidden_size=24, own_embedding=True)
    own = _with(own_embedding=True)
    tied = _with(own_embedding=True, draft_vocab_size=VOCAB)
    eagle_taps = {"eagle_aux_hidden_state_layer_ids": [1, 5, 8], "use_aux_hidden_state": True}
    boundaries = {"eagle_aux_hidden_state_layer_ids": [4, 8, 12]}
    copy = {"embed_tokens.weight": target_rows()}
    return {
        "SafeAILab": Layout(
            DRAFT, flat(DRAFT, torch_dtype="float16", max_position_embeddings=2048), midlayer, MASK, (), "F16", "pickle"
        ),
        "SafeAILab, one vocabulary": Layout(
            _with(draft_vocab_size=VOCAB),
            flat(_with(draft_vocab_size=VOCAB)),
            midlayer,
            {},
            ("target_ids",),
            "F32",
            "pickle shards",
        ),
        "SafeAILab, the target's layer count": Layout(DRAFT, flat(DRAFT, num_hidden_layers=12), midlayer, MASK),
        "SafeAILab 70B": Layout(
            small, flat(small, target_hidden_size=WIDTH, head_dim=None) | {"head_dim": 8}, midlayer, MASK, (), "F16"
        ),
        "SpecForge": Layout(
            _with(rope=Rope("llama3", 500000.0, 8.0, 1.0, 4.0, 64)),
            flat(DRAFT, rope_scaling=LLAMA3, rope_theta=500000.0, eagle_config=None),
            midlayer,
            MASK,
            (),
            "BF16",
        ),
        "SpecForge, embedding in the file": Layout(DRAFT, flat(DRAFT), midlayer, MASK | copy, (), "BF16", "shards"),
        "SpecForge, mrope": Layout(
            _with(rope=Rope(theta=1e6)),
            flat(DRAFT, rope_theta=1e6, rope_scaling={"type": "mrope", "mrope_section": [1, 1, 2]}),
            midlayer,
            MASK,
        ),
        "lmsys": Layout(DRAFT, flat(DRAFT, eagle_config=eagle_taps), midlayer, MASK, (), "BF16"),
        "RedHat": Layout(
            dataclasses.replace(redhat, rope=Rope(theta=500000.0)),
            nested(redhat, {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}, "rope_theta": 1.0}),
            extra=MASK | copy | _verifier(redhat),
            dtype="BF16",
        ),
        "RedHat, draft_model.": Layout(
            redhat, nested(redhat), lambda name: f"draft_model.{name}" if name[0] != "l" else f"model.{name}"
        ),
        "RedHat gpt-oss": Layout(gpt_oss, nested(gpt_oss), extra=MASK | copy),
        "ModelOpt": Layout(
            head,
            flat(head, head_dim=8, attention_bias=False, mlp_bias=False, pretraining_tp=1, eagle_config=MODELOPT)
            | {"draft_vocab_size": None},
            without=("target_ids",),
            dtype="BF16",
        ),
        "NVIDIA gpt-oss": Layout(
            gpt_oss, flat(gpt_oss, eagle_config=MODELOPT | boundaries | {"norm_before_fc": True}), dtype="BF16"
        ),
        "EAGLE 3.1": Layout(eagle31, flat(eagle31, fc_norm=True, norm_output=True), midlayer, MASK),
        "EAGLE 3.1 of speculators": Layout(eagle31, nested(eagle31), extra=MASK),
        "Qwen3": Layout(qwen3, nested(qwen3, {"model_type": "qwen3", "use_sliding_window": False}), extra=MASK),
        "Qwen3, head_dim by weights": Layout(qwen3, flat(qwen3, norm_before_residual=True), midlayer, MASK),
        "Qwen2 biases": Layout(_with(attention_bias=True), flat(DRAFT, model_type="qwen2"), midlayer, MASK),
        "all biases": Layout(biased, flat(DRAFT, attention_bias=True, mlp_bias=True, bias=True), midlayer, MASK),
        "several layers": Layout(layers, nested(layers), extra=MASK, form="shards"),
        "several layers of SGLang": Layout(
            layers, flat(layers, norm_output=True, num_aux_hidden_states=3), lambda name: f"model.{sglang(name)}", MASK
        ),
        "one tap": Layout(_with(taps=(12,)), flat(DRAFT, eagle_aux_hidden_state_layer_ids=[12]), midlayer, MASK),
        "five taps": Layout(_with(taps=(0, 2, 6, 9, 12)), nested(_with(taps=(0, 2, 6, 9, 12))), extra=MASK),
        "trained embedding": Layout(own, nested(own, embed_requires_grad=True), extra=MASK),
        "tied head": Layout(
            tied, flat(tied, tie_word_embeddings=True, embed_requires_grad=True), midlayer, {}, ("lm_head.weight",)
        ),
        "yarn": Layout(
            _with(rope=Rope("yarn", 10000.0, 4.0, original_max_position=16, attention_factor=1.1386294361119891)),
            flat(
                DRAFT,
                rope_scaling={
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 16,
                    "rope_theta": 10000.0,
                },
                rope_theta=5.0,
            ),
            midlayer,
            MASK,
        ),
        "linear": Layout(
            _with(rope=Rope("linear", 10000.0, 2.0)),
            flat(DRAFT, rope_scaling={"type": "linear", "factor": 2.0}),
            midlayer,
            MASK,
        ),
        "Llama 4": Layout(
            DRAFT,
            flat(DRAFT, model_type="llama4_text", intermediate_size=7, intermediate_size_mlp=48),
            midlayer,
            MASK,
        ),
    }


def _single(path: Path, stored: Tensors, dtype: str) -> None:
    write_tensors(path / "model.safetensors", [lazy(name, value, dtype) for name, value in stored.items()])


def _shards(path: Path, stored: Tensors, dtype: str) -> None:
    names = sorted(stored)
    halves = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, some in halves.items():
        write_tensors(path / file, [lazy(name, stored[name], dtype) for name in some])
    index = {name: file for file, some in halves.items() for name in some}
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


def _pickle(path: Path, stored: Tensors, dtype: str, file: str = "pytorch_model.bin") -> None:
    import torch

    half = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[dtype]
    tensors = {name: torch.from_numpy(value) for name, value in stored.items()}
    torch.save({name: t.to(half) if t.is_floating_point() else t for name, t in tensors.items()}, path / file)


def _pickle_shards(path: Path, stored: Tensors, dtype: str) -> None:
    names = sorted(stored)
    halves = {"pytorch_model-00001-of-00002.bin": names[::2], "pytorch_model-00002-of-00002.bin": names[1::2]}
    for file, some in halves.items():
        _pickle(path, {name: stored[name] for name in some}, dtype, file)
    index = {name: file for file, some in halves.items() for name in some}
    (path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": index}))


def lazy(name: str, value: npt.NDArray[Any], dtype: str = "F32") -> LazyTensor:
    """For `write_tensors`; floats become `dtype`."""
    value = np.ascontiguousarray(value)
    if value.dtype != np.float32:
        return LazyTensor(name, {"bool": "BOOL", "int64": "I64"}[str(value.dtype)], value.shape, value.tobytes)
    if dtype == "BF16":
        return LazyTensor(name, dtype, value.shape, (value.view(np.uint32) >> 16).astype("<u2").tobytes)
    return LazyTensor(name, dtype, value.shape, value.astype({"F32": "<f4", "F16": "<f2"}[dtype]).tobytes)


WRITERS: dict[str, Callable[[Path, Tensors, str], None]] = {
    "single": _single,
    "shards": _shards,
    "pickle": _pickle,
    "pickle shards": _pickle_shards,
}
LAYOUTS = _layouts()
"""By the name of who writes it."""
