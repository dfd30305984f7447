"""Tiny random Hugging Face checkpoints of every target family, and transformers' own logits for them.

A checkpoint is what `save_pretrained` writes (so the tensors have the published names), float32, with the config keys
that published checkpoints have. Weights are wide enough for logits that are far from flat: norms are not all 1, biases
and sinks not 0, layer scalars not 1. transformers is imported inside functions only.
"""

from __future__ import annotations

import functools
import json
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tiny import CONTROLS, TEMPLATE, tiny_tokenizer

VOCAB = 320
WINDOW = 8
S, F = "sliding_attention", "full_attention"
_LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "rope_theta": 10000.0,
    "bos_token_id": None,
    "eos_token_id": 2,
}
_QWEN3 = {key: value for key, value in _LLAMA.items() if key != "mlp_bias"} | {"model_type": "qwen3"}
_GEMMA: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "sliding_window": WINDOW,
    "layer_types": [S, S, F, S, S, F],
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": None,
}
_GEMMA4 = _GEMMA | {
    "model_type": "gemma4_text",
    "global_head_dim": 32,
    "final_logit_softcapping": 30.0,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": VOCAB,
    "num_kv_shared_layers": 0,
    "use_double_wide_mlp": False,
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
    "enable_moe_block": False,
    "rope_parameters": {
        S: {"rope_type": "default", "rope_theta": 10000.0},
        F: {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25},
    },
}
_YARN: dict[str, Any] = {"factor": 4.0, "original_max_position_embeddings": 256, "beta_fast": 32.0, "beta_slow": 1.0}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _LLAMA
    | {
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    },
    "llama_yarn": _LLAMA | {"rope_scaling": {"rope_type": "yarn", **_YARN}},
    "llama_linear": _LLAMA | {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "qwen2": {key: value for key, value in _QWEN3.items() if key not in ("head_dim", "attention_bias")}
    | {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 4096, "rope_theta": 1000000.0},
    "qwen3": _QWEN3 | {"head_dim": 32, "tie_word_embeddings": True, "rope_theta": 1000000.0},
    "gemma3": _GEMMA
    | {
        "model_type": "gemma3_text",
        "query_pre_attn_scalar": 24,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "gemma4": _GEMMA4,
    "gemma4_e": _GEMMA4
    | {
        "layer_types": [S, F, S, S, S, F],
        "num_kv_shared_layers": 3,
        "use_double_wide_mlp": True,
        "attention_k_eq_v": False,
        "num_global_key_value_heads": None,
        "num_key_value_heads": 1,
        "hidden_size_per_layer_input": 16,
    },
    "gpt_oss": {
        "model_type": "gpt_oss",
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "attention_bias": True,
        "sliding_window": WINDOW,
        "layer_types": [S, F, S, F],
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "experts_per_token": 2,
        "swiglu_limit": 7.0,
        "rope_theta": 150000.0,
        "rope_scaling": {"rope_type": "yarn", **_YARN, "original_max_position_embeddings": 512, "truncate": False},
        "eos_token_id": 2,
    },
    "gemma4_moe": _GEMMA4
    | {
        "enable_moe_block": True,
        "num_experts": 8,
        "top_k_experts": 2,
        "moe_intermediate_size": 32,
    },
    "qwen3_moe": _QWEN3
    | {
        "model_type": "qwen3_moe",
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "use_sliding_window": False,
        "sliding_window": None,
    },
}
"""config.json of each family by its short name here."""
FAMILIES = tuple(CONFIGS)
MIXTURES = ("gpt_oss", "gemma4_moe", "qwen3_moe")
WINDOWED = ("gemma3", "gemma4", "gemma4_e", "gpt_oss", "gemma4_moe")
_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma4_text": "Gemma4ForCausalLM",
}
_WRAPPERS = {"gemma3_text": "gemma3", "gemma4_text": "gemma4"}


def family_checkpoint(
    directory: Path, family: str, *, seed: int = 0, changes: dict[str, Any] | None = None, nested: bool = False
) -> Path:
    """Write a tiny checkpoint of a family.

    Args:
        directory: A new directory in it is made.
        family: One of FAMILIES.
        seed: Of the weights.
        changes: Other values for keys of its config; None takes a key away.
        nested: As multimodal checkpoints have it (Gemma alone): the numbers under `text_config`, the tensors under
            `model.language_model.`, and beside them one of a vision tower.

    Returns:
        A directory with config.json, model.safetensors, tokenizer.json, tokenizer_config.json, chat_template.jinja.
    """
    from safetensors.numpy import load_file, save_file

    config = CONFIGS[family] | (changes or {})
    config = {key: value for key, value in config.items() if value is not None or key not in (changes or {})}
    path = directory / f"Tiny-{family}"
    with _quiet():
        model = _model(config)
        _fill(model, config, seed)
        model.save_pretrained(path)
    for extra in path.glob("generation_config.json"):
        extra.unlink()
    architecture = _ARCHITECTURES[config["model_type"]]
    written: dict[str, Any] = {"architectures": [architecture], "dtype": "float32"} | config
    tensors = load_file(path / "model.safetensors")
    if nested:
        wrapper = _WRAPPERS[config["model_type"]]
        written = {
            "architectures": [f"{wrapper.capitalize()}ForConditionalGeneration"],
            "model_type": wrapper,
            "text_config": config,
            "vision_config": {"model_type": f"{wrapper}_vision", "hidden_size": 32},
            "tie_word_embeddings": config["tie_word_embeddings"],
            "eos_token_id": config["eos_token_id"],
        }
        tensors = {name.replace("model.", "model.language_model.", 1): value for name, value in tensors.items()}
        tensors["model.vision_tower.patch_embedder.input_proj.weight"] = np.zeros((32, 48), np.float32)
        tensors["model.embed_vision.embedding_projection.weight"] = np.zeros((64, 32), np.float32)
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(written, indent=1))
    (path / "tokenizer.json").write_text(json.dumps(tiny_tokenizer(VOCAB)))
    words = {"eos_token": CONTROLS[2], "unk_token": CONTROLS[0]}
    (path / "tokenizer_config.json").write_text(json.dumps(words))
    (path / "chat_template.jinja").write_text(TEMPLATE)
    return path


def mxfp4_experts(path: Path, powers: tuple[int, int], seed: int = 0) -> dict[tuple[int, str], tuple[Any, Any]]:
    """Put random MXFP4 experts in the place of a gpt_oss checkpoint's dense ones, as published ones have them.

    Args:
        powers: The scales' codes are drawn from these, the latter excluded; 127 is 1.

    Returns:
        (layer, "gate_up_proj" or "down_proj") to blocks [E, N, K / 32, 16] and scales [E, N, K / 32], torch uint8.
    """
    import torch
    from safetensors.torch import load_file, save_file

    tensors, config = load_file(path / "model.safetensors"), json.loads((path / "config.json").read_text())
    rng, made = np.random.default_rng(seed), {}
    for name in sorted(name for name in tensors if name.endswith((".gate_up_proj", ".down_proj"))):
        count, columns, rows = tensors.pop(name).shape
        shape = (count, rows, columns // 32)
        blocks = torch.from_numpy(rng.integers(0, 256, (*shape, 16), np.uint8))
        scales = torch.from_numpy(rng.integers(*powers, shape, np.uint8))
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        made[int(name.split(".")[2]), name.rsplit(".", 1)[1]] = blocks, scales
    save_file(tensors, path / "model.safetensors")
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": kept}
    (path / "config.json").write_text(json.dumps(config))
    return made


def true_logits(path: Path, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
    """transformers' logits [M, V] of tokens [M], eager attention, float32, without a cache.

    Args:
        path: A directory that `family_checkpoint` made, nested or not.
    """
    import torch

    with _quiet(), torch.inference_mode():
        output = _loaded(str(path))(input_ids=torch.tensor([list(tokens)]), use_cache=False)
        return np.asarray(output.logits[0].float().numpy())


def true_module(path: Path) -> Any:
    """transformers' model of a directory that `family_checkpoint` made: float32, eager attention."""
    with _quiet():
        return _loaded(str(path))


@functools.lru_cache(maxsize=2)
def _loaded(path: str) -> Any:
    import torch
    from safetensors.torch import load_file

    config = json.loads((Path(path) / "config.json").read_text())
    if "text_config" in config:
        config = config["text_config"]
        state = load_file(Path(path) / "model.safetensors")
        state = {k.replace("language_model.", ""): v for k, v in state.items() if "vision" not in k}
        model = _model(config)
        missing, unexpected = model.load_state_dict(state, strict=False)
        assert not unexpected and all(name == "lm_head.weight" for name in missing), (missing, unexpected)
        model.tie_weights()
        return model.eval()
    import transformers

    model, info = getattr(transformers, _ARCHITECTURES[config["model_type"]]).from_pretrained(
        path, attn_implementation="eager", dtype=torch.float32, output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    return model.eval()


def _model(config: dict[str, Any]) -> Any:
    """An empty model of a flat config."""
    import torch
    import transformers

    kind = config["model_type"]
    made = transformers.AutoConfig.for_model(**json.loads(json.dumps(config)))
    made._attn_implementation = "eager"
    with torch.random.fork_rng(devices=[]):
        return getattr(transformers, _ARCHITECTURES[kind])(made).float().eval()


def _fill(model: Any, config: dict[str, Any], seed: int) -> None:
    """Random weights, the same for the same names and shapes whatever transformers draws."""
    import torch

    tied = config["tie_word_embeddings"]
    centre = 0.0 if config["model_type"] == "gemma3_text" else 1.0  # its norms multiply by 1 + weight
    named = [*model.named_parameters(), *((n, b) for n, b in model.named_buffers() if n.endswith("layer_scalar"))]
    with torch.no_grad():
        for index, (name, value) in enumerate(sorted(named, key=lambda pair: pair[0])):
            rng = np.random.default_rng((seed, index))
            drawn = rng.standard_normal(tuple(value.shape))
            if name == "model.norm.weight":
                drawn = (3.0 if tied else 1.0) - 1.0 + centre + 0.4 * drawn
            elif name.endswith(("q_norm.weight", "k_norm.weight")) and config["model_type"] == "gemma4_text":
                drawn = 0.4 + 0.12 * drawn  # its scores are not divided: longer heads would make noise of rounding
            elif name.endswith("norm.weight") or "layernorm" in name:
                drawn = centre + 0.3 * drawn
            elif name.endswith(("layer_scalar", "per_expert_scale", "router.scale")):
                drawn = 0.8 + 0.2 * np.tanh(drawn)
            elif "embed_tokens" in name:
                drawn *= 0.15 if tied else 1.0
            elif name == "lm_head.weight":
                drawn *= 3.0 * value.shape[-1] ** -0.5
            elif name.endswith("sinks"):
                drawn += 1.0
            elif "bias" in name:
                drawn *= 0.3
            else:
                columns = value.shape[-2] if config["model_type"] == "gpt_oss" and value.dim() == 3 else value.shape[-1]
                gain = 2.0 if name.endswith(("q_proj.weight", "k_proj.weight", "router.weight", "gate.weight")) else 1.2
                if config["model_type"] == "gpt_oss" and "experts" in name:
                    gain = 4.0 if "gate_up" in name else 0.3  # some values beyond the limit
                drawn *= gain * columns**-0.5
            value.copy_(torch.from_numpy(drawn.astype(np.float32)))


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers without its notes, its progress bars, and a look at the network."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers.utils import logging

        bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
        logging.disable_progress_bar()
        logging.set_verbosity_error()
        try:
            yield
        finally:
            logging.set_verbosity(level)
            if bars:
                logging.enable_progress_bar()
