"""The keys of an EAGLE-3 draft's config.json: which are used, which are harmless, which must be refused.

Knows no weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eagle3chat.engine.errors import CheckpointError

LAYER_CONFIG = "transformer_layer_config"
_USED = """
    attention_bias draft_vocab_size eagle_aux_hidden_state_layer_ids eagle_config embed_requires_grad fc_norm head_dim
    hidden_act hidden_size intermediate_size model_type norm_before_fc norm_before_residual norm_output
    num_attention_heads num_hidden_layers num_key_value_heads rms_norm_eps rope_parameters rope_scaling rope_theta
    speculators_model_type target_hidden_size vocab_size
    """
USED = frozenset(_USED.split())
_HARMLESS = """
    _attn_implementation _attn_implementation_autoset _name_or_path add_cross_attention architectures
    attention_dropout auto_map bad_words_ids begin_suppress_tokens bos_token_id chunk_size_feed_forward
    cross_attention_hidden_size decoder_start_token_id diversity_penalty do_sample dtype early_stopping
    encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty finetuning_task forced_bos_token_id
    forced_eos_token_id id2label initializer_range is_decoder is_encoder_decoder label2id layer_types
    length_penalty max_length max_position_embeddings max_window_layers min_length no_repeat_ngram_size
    num_beam_groups num_beams num_return_sequences original_max_position_embeddings output_attentions
    output_hidden_states output_scores pad_token_id prefix pretraining_tp problem_type pruned_heads
    remove_invalid_values repetition_penalty return_dict return_dict_in_generate sep_token_id speculators_config
    speculators_version suppress_tokens task_specific_params temperature tf_legacy_loss tie_encoder_decoder
    tie_word_embeddings tokenizer_class top_k top_p torch_dtype torchscript transformers_version
    typical_p use_bfloat16 use_cache
    """
HARMLESS = frozenset(_HARMLESS.split())
"""What says nothing about the numbers of one decoder layer: training, generation defaults and bookkeeping."""
MODEL_TYPES = ("llama", "qwen3", "eagle3", "speculator_model")
OTHER = "Use another draft, or delete the key from config.json if it means nothing."


def merged(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """One flat config: the layer's numbers over those at the top, except for its kind of model.

    Raises:
        CheckpointError: It is not the config of an EAGLE-3 draft.
    """
    kind = config.get("speculators_model_type", "eagle3")
    if kind != "eagle3":
        raise CheckpointError(f"{where}: drafts of the kind {kind!r} are not known.", "Use an EAGLE-3 draft.")
    layer = config.get(LAYER_CONFIG) or {}
    if not isinstance(layer, dict):
        raise CheckpointError(f"{where}: {LAYER_CONFIG} is not an object.", "Download the file again.")
    return {key: value for key, value in config.items() if key != LAYER_CONFIG} | layer


def check_flags(config: Mapping[str, Any], where: str) -> None:
    """Refuse what would change the numbers and is not understood.

    Raises:
        CheckpointError: Names the key.
    """
    if config.get("model_type") not in (None, *MODEL_TYPES):
        raise CheckpointError(f"{where}: the layer's model type {config['model_type']!r} is not known.", OTHER)
    if config.get("num_hidden_layers", 1) != 1:
        raise CheckpointError(f"{where}: {config['num_hidden_layers']} layers are not known; one is.", OTHER)
    if config.get("hidden_act", "silu") != "silu":
        raise CheckpointError(f"{where}: hidden_act {config['hidden_act']!r} is not known.", OTHER)
    if (config.get("eagle_config") or {}).get("use_aux_hidden_state") is False:
        raise CheckpointError(f"{where}: use_aux_hidden_state is false: not an EAGLE-3 draft.", OTHER)
    if config.get("fc_norm") and config.get("norm_before_fc"):
        raise CheckpointError(f"{where}: fc_norm and norm_before_fc exclude each other.", OTHER)
    for key, value in config.items():
        if key not in USED | HARMLESS and value not in (None, False, "", [], {}):
            raise CheckpointError(f"{where}: the setting {key} = {value!r} is not known.", OTHER)
