"""The scripted pair: a small text, its tokens, and a chain that talks like it. For demos, tests and the screen.

Words of the text are tokens of their own; any other text is spelt in bytes, so a prompt may say anything.
"""

from __future__ import annotations

import re

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import ByteLevel as ByteLevelProcessor

from eagle3chat.engine.events import Info
from eagle3chat.engine.pair import Pair, check_bos, choose_stops, choose_template, end_of_turn, stop_texts
from eagle3chat.engine.requests import PairOptions
from eagle3chat.engine.scripted import ScriptedBackend, blurred, follow_text
from eagle3chat.engine.text import Codec

CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
STORY = """\
A small draft head reads what the big model felt and guesses the next few words. The big model looks at all of the \
guesses in one pass. It keeps the words that it would have said and drops the first one that it would not. Then it \
says its own word and the draft head guesses again.

The text is the text that the big model alone would have written, only sooner. When the guesses are good the words \
come three or four at a time. When the guesses are bad the big model still says one word in every pass, so nothing \
is lost.

A few things help the draft head guess well:

- plain prose, and code that repeats itself
- a low temperature, so the big model does what one would expect
- a chain that is not too long

```python
for word in guesses:
    if word != target.choose():
        break
    keep(word)
```

That is all there is to it. ✓"""


def story_tokens() -> list[str]:
    """The text cut into words with the space before them, punctuation and fence marks."""
    return re.findall(r"```\w*| ?\w+| ?[^\w\s]|\s+", STORY)


def story_tokenizer() -> Tokenizer:
    """Byte-level: 3 control tokens, 256 bytes, then the words of the story."""
    byte = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words = sorted({byte.pre_tokenize_str(word)[0][0] for word in story_tokens()})
    names = [*CONTROLS, *sorted(pre_tokenizers.ByteLevel.alphabet()), *words]
    vocab = {name: i for i, name in enumerate(dict.fromkeys(names))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = byte
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = ByteLevelProcessor(trim_offsets=False)
    tokenizer.add_special_tokens(list(CONTROLS))
    return tokenizer


def known_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a token that is in the vocabulary."""
    token_id = tokenizer.token_to_id(token)
    assert token_id is not None, token
    return token_id


def open_scripted(options: PairOptions) -> Pair:
    """The scripted pair under the given options; the bundle, device and dtype of the options do not matter."""
    tokenizer = story_tokenizer()
    codec = Codec(tokenizer)
    end = known_id(tokenizer, "<|im_end|>")
    backend = story_backend(tokenizer, end, options)
    template = choose_template(options, "chatml", None, end_of_turn(options, (end,), codec))
    stops = choose_stops(options, (end,), template, codec)
    info = Info(
        model="scripted",
        draft="scripted draft",
        family="scripted",
        backend="scripted",
        device="none",
        dtype="none",
        template=template.name,
        capacity=backend.capacity,
        max_chain=backend.max_chain,
        default_chain=3,
        unavailable="",
        stops=stop_texts(stops, codec),
        load_seconds=0.0,
        memory_bytes=0,
    )
    bos_id = -1 if options.bos_id is None else options.bos_id
    check_bos(bos_id, codec.vocab_size)
    return Pair(backend, codec, template, stops, bos_id, codec.vocab_size, info)


def story_backend(tokenizer: Tokenizer, end: int, options: PairOptions) -> ScriptedBackend:
    """A target that talks like the story, and a draft that is wrong a quarter of the time."""
    words = story_tokens()
    byte = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    ids = [known_id(tokenizer, byte.pre_tokenize_str(word)[0][0]) for word in words]
    paragraphs = [i + 1 for i, word in enumerate(words) if word == "\n\n"]
    starts = [ids[0], *(ids[i] for i in paragraphs[:2])]
    blanks = [i for i, word in zip(ids, words, strict=True) if not word.strip()]
    vocab_size = tokenizer.get_vocab_size()
    target = follow_text([*ids, end], starts, blanks, vocab_size)
    draft_ids = sorted({*ids, end})
    draft = blurred(target, share=0.25, seed=1, draft_ids=draft_ids)
    capacity, seconds = options.context or 4096, options.script_seconds
    return ScriptedBackend(target, draft, draft_ids, vocab_size=vocab_size, capacity=capacity, seconds=seconds)
