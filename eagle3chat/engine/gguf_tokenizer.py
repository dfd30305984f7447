"""The tokenizer in a GGUF file's metadata, as tokenizer.json.

Byte-level BPE ("gpt2") only. `tokenizer.ggml.pre` names a rule for splitting text before the merges and does
not contain it, so the rules are kept here and an unknown name is refused. Key names and token types: the GGUF
specification. Knows no tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from eagle3chat.engine.errors import CheckpointError

CONTROL, USER_DEFINED = 3, 4
Metadata = Mapping[str, Any]

QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

SPLITS = {"llama-bpe": LLAMA3_SPLIT, "qwen2": QWEN2_SPLIT}


def gguf_tokenizer(metadata: Metadata, where: str) -> Tokenizer:
    """The tokenizer that the metadata describes.

    Raises:
        CheckpointError: Its model or its splitting rule is not known, or a list is missing. `where` names the file.
    """
    model = metadata.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise CheckpointError(f"{where}: the tokenizer model {model!r} is not known.", "Known: gpt2.")
    tokens, merges = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.merges")
    if not tokens or merges is None:
        raise CheckpointError(f"{where}: the tokenizer's tokens or merges are missing.", "Use another file.")
    pre = metadata.get("tokenizer.ggml.pre")
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=[_pair(merge) for merge in merges],
            ignore_merges=pre == "llama-bpe",
        )
    )
    tokenizer.pre_tokenizer = _pre_tokenizer(pre, where)
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    types = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    for kind, special in ((CONTROL, True), (USER_DEFINED, False)):
        added = [t for t, k in zip(tokens, types, strict=True) if k == kind]
        tokenizer.add_tokens([AddedToken(t, special=special, normalized=False) for t in added])
    assert tokenizer.get_vocab_size() == len(tokens)
    return tokenizer


def gguf_tokenizer_config(metadata: Metadata) -> dict[str, Any]:
    """tokenizer_config.json: the tokens with a role, by name."""
    tokens = metadata["tokenizer.ggml.tokens"]
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": bool(metadata.get("tokenizer.ggml.add_bos_token", False)),
    }
    for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token_id = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is not None:
            config[f"{role}_token"] = tokens[token_id]
    return config


def control_ids(metadata: Metadata) -> dict[str, int]:
    """Control tokens and their ids."""
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata.get("tokenizer.ggml.token_type") or []
    return {token: i for i, (token, kind) in enumerate(zip(tokens, types, strict=False)) if kind == CONTROL}


def _pair(merge: str) -> tuple[str, str]:
    """The two halves of "a b". The first may itself begin with a space, so the search starts behind it."""
    cut = merge.index(" ", 1)
    return merge[:cut], merge[cut + 1 :]


def _pre_tokenizer(pre: object, where: str) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)  # with GPT-2's splitting rule
    if pre == "gpt-2":
        return byte_level
    if pre == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    if pre in SPLITS:
        split = pre_tokenizers.Split(Regex(SPLITS[str(pre)]), behavior="isolated")
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    raise CheckpointError(
        f"{where}: the tokenizer's splitting rule {pre!r} is not known.", f"Known: smollm, gpt-2, {', '.join(SPLITS)}."
    )
