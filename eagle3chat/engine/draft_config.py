"""The keys of an EAGLE-3 draft's config.json: which are used, which are harmless, which must be refused.

Three layouts become one flat object: keys at the top (EAGLE, SpecForge), the layer's under `transformer_layer_config`
(speculators), and switches under `eagle_config` (ModelOpt, and SpecForge's taps). Knows no weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eagle3chat.engine.config import Rope
from eagle3chat.engine.errors import CheckpointError
from eagle3chat.engine.hf_rope import read_rope

LAYER_CONFIG, EAGLE_CONFIG = "transformer_layer_config", "eagle_config"
TAP_IDS = "eagle_aux_hidden_state_layer_ids"
NORMS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
ROPE = ("rope_parameters", "rope_scaling", "rope_theta")
_USED = """
    attention_bias bias draft_vocab_size eagle_aux_hidden_state_layer_ids eagle_config embed_requires_grad head_dim
    hidden_act hidden_size intermediate_size intermediate_size_mlp layer_types mlp_bias model_type
    num_attention_heads num_aux_hidden_states num_hidden_layers num_key_value_heads qkv_bias quantization
    quantization_config rms_norm_eps
    speculators_model_type target_hidden_size tie_word_embeddings use_sliding_window vocab_size
    """
USED = frozenset((*_USED.split(), *NORMS, *ROPE))
_HARMLESS = """
    _attn_implementation _attn_implementation_autoset _name_or_path add_cross_attention architectures
    attention_dropout auto_map bad_words_ids begin_suppress_tokens bos_token_id chunk_size_feed_forward
    cross_attention_hidden_size decoder_start_token_id diversity_penalty do_sample dtype early_stopping
    encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty finetuning_task forced_bos_token_id
    forced_eos_token_id id2label initializer_range is_decoder is_encoder_decoder label2id
    length_penalty max_length max_position_embeddings max_window_layers min_length no_repeat_ngram_size
    num_beam_groups num_beams num_return_sequences original_max_position_embeddings output_attentions
    output_hidden_states output_scores pad_token_id prefix pretraining_tp problem_type pruned_heads
    remove_invalid_values repetition_penalty return_dict return_dict_in_generate sep_token_id speculators_config
    speculators_version suppress_tokens task_specific_params temperature tf_legacy_loss tie_encoder_decoder
    tokenizer_class top_k top_p torch_dtype torchscript transformers_version ttt_length ttt_steps
    typical_p use_bfloat16 use_cache
    """
HARMLESS = frozenset(_HARMLESS.split())
"""What says nothing about the numbers of one decoder layer: training, generation defaults and bookkeeping."""
MODEL_TYPES = ("llama", "llama4_text", "qwen2", "qwen3", "eagle3", "speculators", "speculator_model")
SWITCHES: Mapping[str, Any] = {
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "next_layer_regular": True,
    "parallel_draft_step": 1,
    "eagle_decoder_type": "llama",
}
"""ModelOpt's, with the value that makes an EAGLE-3 draft of ordinary layers; absent ones have it."""
_SWITCHES = """
    eagle_disable_moe eagle_freeze_base_model eagle_hidden_state_distillation eagle_loss_decay_factor
    eagle_mix_hidden_states eagle_offline eagle_report_acc eagle_self_logit_distillation eagle_ttt_steps
    eagle_use_torch_compile has_lm_head parallel_draft_heads_num_layers
    """
HARMLESS_SWITCHES = frozenset(_SWITCHES.split())
OTHER = "Use another draft, or delete the key from config.json if it means nothing."
PARALLEL = "a parallel draft (P-EAGLE), which is another kind of proposer"
LATENT = "latent attention (MLA), which is not known for drafts"
FOREIGN: Mapping[str, str] = {
    "parallel_drafting": PARALLEL,
    "mask_token_id": PARALLEL,
    "mask_hidden": PARALLEL,
    "kv_lora_rank": LATENT,
    "q_lora_rank": LATENT,
}
"""What a key that is set gives away."""


def merged(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """One flat config: the layer's numbers over those at the top, and eagle_config's norms over both.

    Raises:
        CheckpointError: It is not the config of an EAGLE-3 draft.
    """
    kind = config.get("speculators_model_type", "eagle3")
    if kind == "peagle":
        raise CheckpointError(f"{where}: it is {PARALLEL}.", "Use an EAGLE-3 draft.")
    if kind != "eagle3":
        raise CheckpointError(f"{where}: drafts of the kind {kind!r} are not known.", "Use an EAGLE-3 draft.")
    layer, eagle = (_inner(config, key, where) for key in (LAYER_CONFIG, EAGLE_CONFIG))
    top = {key: value for key, value in config.items() if key != LAYER_CONFIG}
    if any(layer.get(key) is not None for key in ROPE):
        top = {key: value for key, value in top.items() if key not in ROPE}
    return top | layer | {key: eagle[key] for key in NORMS if eagle.get(key) is not None}


def _inner(config: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    value = config.get(key) or {}
    if not isinstance(value, dict):
        raise CheckpointError(f"{where}: {key} is not an object.", "Download the file again.")
    return value


def check_flags(config: Mapping[str, Any], where: str) -> None:
    """Refuse what would change the numbers and is not understood. `config` is `merged`.

    Raises:
        CheckpointError: Names the key.
    """
    for key, what in FOREIGN.items():
        if config.get(key) not in (None, False):
            raise CheckpointError(f"{where}: {key} = {config[key]!r} says that it is or has {what}.", OTHER)
    if config.get("model_type") not in (None, *MODEL_TYPES):
        raise CheckpointError(f"{where}: the layer's model type {config['model_type']!r} is not known.", OTHER)
    if config.get("hidden_act", "silu") != "silu":
        raise CheckpointError(f"{where}: hidden_act {config['hidden_act']!r} is not known.", OTHER)
    if config.get("fc_norm") and config.get("norm_before_fc"):
        raise CheckpointError(f"{where}: fc_norm and norm_before_fc exclude each other.", OTHER)
    if set(map(str, config.get("layer_types") or ())) - {"full_attention"}:
        raise CheckpointError(f"{where}: layer_types {config['layer_types']!r} are not all full_attention.", OTHER)
    _check_switches(config.get(EAGLE_CONFIG) or {}, where)
    if config.get("use_sliding_window"):
        raise CheckpointError(f"{where}: use_sliding_window is not known for drafts.", OTHER)
    unused = {"sliding_window"} if config.get("use_sliding_window") is False else set()
    for key, value in config.items():
        if key in SWITCHES:
            _check_switch(key, value, where)
        elif key not in USED | HARMLESS | unused and value not in (None, False, "", [], {}):
            raise CheckpointError(f"{where}: the setting {key} = {value!r} is not known.", OTHER)


def read_draft_rope(config: Mapping[str, Any], where: str) -> Rope:
    """As `read_rope`; a draft's positions are those of text, for which mrope (Qwen-VL) is the default kind.

    Raises:
        CheckpointError: The kind is unknown or lacks a number.
    """
    settings, scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}, config.get("rope_scaling")
    if isinstance(settings, dict):
        settings = {key: value for key, value in settings.items() if key not in ("mrope_section", "mrope_interleaved")}
        if (settings.get("rope_type") or settings.get("type")) == "mrope":
            settings = {"rope_theta": settings.get("rope_theta")}
        if isinstance(scaling, dict) and settings.get("rope_theta") is None:
            settings["rope_theta"] = scaling.get("rope_theta")
    return read_rope({**config, "rope_parameters": settings, "rope_scaling": None}, where)


def _check_switches(switches: Mapping[str, Any], where: str) -> None:
    for key, value in switches.items():
        if key in SWITCHES:
            _check_switch(key, value, where)
        elif key not in (TAP_IDS, *NORMS) and key not in HARMLESS_SWITCHES and value not in (None, False, "", [], {}):
            raise CheckpointError(f"{where}: the setting {EAGLE_CONFIG}.{key} = {value!r} is not known.", OTHER)


def _check_switch(key: str, value: Any, where: str) -> None:
    if value is None or value == SWITCHES[key]:
        return
    if key == "parallel_draft_step":
        what = f"parallel_draft_step is {value!r}: it is {PARALLEL}"
    elif key == "use_aux_hidden_state":
        what = "use_aux_hidden_state is false: not an EAGLE-3 draft"
    else:
        what = f"{key} is {value!r}, and only {SWITCHES[key]!r} is known"
    raise CheckpointError(f"{where}: {what}.", OTHER)
