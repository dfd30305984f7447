"""Small real tokenizers, trained in memory: the kinds that decode text differently."""

from __future__ import annotations

import functools
import json

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CONTROLS = (
    *("<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<|endoftext|>"),
    *("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|begin_of_text|>"),
    *("<bos>", "<|turn>", "<turn|>", "<|channel>", "<channel|>"),
)
CORPUS = (
    "the cat sat on the mat and the dog sat on the log; system user assistant model thought",
    "the weather in the morning is not the weather in the evening, the sky is blue",
    "日本語のテキストと中文文本 日本語 中文",
    "한국어 텍스트 한국어",
    "שָׁלוֹם עוֹלָם שָׁלוֹם",
    "😀😃😄 👩‍👩‍👧 🇩🇪🇯🇵 naïve café",
)
HARD = (
    "😀",
    "a😀b 👩‍👩‍👧‍👦🏽 x",
    "🇩🇪🇯🇵🇺🇸",
    "日本語のテキスト，中文。",
    "한국어 각각",
    "שָׁלוֹם עוֹלָם",
    "e\u0301 a\u0308\u0323 \u200d\u200d",
    " leading and trailing \n\n",
    "\u2581 lower block \ufffd replacement \ufffd\ufffd\ufffd\ufffd\ufffd",
    "\x00\x1b[31m\r\n\t",
)


@functools.cache
def _byte_level_json() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=list(CONTROLS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(["<think>", "</think>"])
    text: str = tokenizer.to_str()
    return text


def byte_level() -> Tokenizer:
    """Byte-level BPE, as GPT-2, Llama 3, Qwen and SmolLM: tokens end anywhere within a character."""
    return Tokenizer.from_str(_byte_level_json())


@functools.cache
def _byte_fallback_json(flavour: str) -> str:
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "\u2581")
    trained.train_from_iterator(CORPUS[:3], trainers.BpeTrainer(vocab_size=220, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    names = [*CONTROLS, *(f"<0x{byte:02X}>" for byte in range(256)), *model["vocab"], "\u2581\u2581"]
    vocab = {name: index for index, name in enumerate(dict.fromkeys(names))}
    merges = [tuple(merge) for merge in model["merges"]]
    if ("\u2581", "\u2581") not in merges:
        merges.append(("\u2581", "\u2581"))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    replace = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    if flavour == "gemma":
        tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
        tokenizer.decoder = decoders.Sequence(replace)
    else:
        tokenizer.decoder = decoders.Sequence([*replace, decoders.Strip(" ", 1, 0)])
        if flavour == "llama":
            tokenizer.normalizer = normalizers.Sequence(
                [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
            )
        else:
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in CONTROLS])
    text: str = tokenizer.to_str()
    return text


def byte_fallback(flavour: str) -> Tokenizer:
    """SentencePiece-like BPE with byte fallback: "llama" marks every run's first word with a space, "metaspace" the
    first run's only, "gemma" none."""
    assert flavour in ("llama", "metaspace", "gemma")
    return Tokenizer.from_str(_byte_fallback_json(flavour))


def word_pieces() -> Tokenizer:
    """WordPiece: a token's text depends on whether it is the first."""
    names = ["[UNK]", "<s>", "hello", "##ing", "world", "."]
    tokenizer = Tokenizer(models.WordPiece({name: index for index, name in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["<s>"])
    return tokenizer


KINDS = ("byte-level", "llama", "metaspace", "gemma")


def tokenizer_of(kind: str) -> Tokenizer:
    """One of KINDS."""
    return byte_level() if kind == "byte-level" else byte_fallback(kind)
