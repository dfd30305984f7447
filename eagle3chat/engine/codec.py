"""The codec: between text and token ids, for prompts and for replies.

A token is a run of UTF-8 bytes, and a reply is the UTF-8 decoding of its tokens' bytes, one after the other. `Codec`
knows the bytes of each token, `Characters` turns them into whole characters as they come. The library's own
`DecodeStream` is not used: in 0.23.3 it holds a byte that never completes a character back without a bound, and
raises when a broken run follows a whole character of a byte-fallback tokenizer.

This module knows no template, no stop rules and no model.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, pre_tokenizers

from eagle3chat.engine.errors import BundleError, CheckpointError
from eagle3chat.engine.requests import Piece

_UNSUPPORTED_DECODERS = frozenset({"BPEDecoder", "CTC"})  # there a token's text depends on the token after it


class Codec:
    """A tokenizer, for prompts with control tokens that only templates can name, and for streamed replies.

    Control tokens are the added tokens that the tokenizer marks as special. Added tokens without that mark (Qwen's
    `<think>` and `<tool_call>`) are ordinary text here: they show in replies, and whoever spells one gets its id,
    as with the library's own encoding. They cannot end or begin a turn.

    The tokenizer belongs to the codec from then on: its truncation, padding and handling of special tokens are set.
    Not for use from two threads at once.

    Args:
        tokenizer: Byte-level, byte-fallback, Metaspace and WordPiece decoders are supported.

    Raises:
        CheckpointError: The tokenizer's decoder cannot be streamed.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer: Any = tokenizer
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True  # the library must not find them in text; `_parts` does, in templates
        decoders = _decoder_names(tokenizer)
        if unsupported := decoders & _UNSUPPORTED_DECODERS:
            raise CheckpointError(
                f"A tokenizer with the decoder {', '.join(sorted(unsupported))} cannot be streamed.",
                "Use a model with a byte-level or a SentencePiece tokenizer.",
            )
        added = tokenizer.get_added_tokens_decoder()
        self._control = {id: token for id, token in added.items() if token.special}
        self._control_ids = {token.content: id for id, token in self._control.items()}
        names = sorted((n for n in self._control_ids if n), key=len, reverse=True)  # the longest wins
        self._control_pattern = re.compile("|".join(map(re.escape, names)) or r"(?!)")
        self._byte_of_char = _byte_level_alphabet() if "ByteLevel" in decoders else None
        self._byte_fallback = "ByteFallback" in decoders
        self._first_only = _metaspaces_of_the_first_word(tokenizer)
        self._inner: dict[int, bytes] = {}  # cache of token_bytes(id, first=False)
        self._shown: dict[int, str] = {}  # cache of token_text
        self.vocab_size: int = max([tokenizer.get_vocab_size(with_added_tokens=True), *(id + 1 for id in added)])

    @classmethod
    def from_file(cls, path: Path) -> Codec:
        """Reads a `tokenizer.json`.

        Raises:
            BundleError: The file is missing, damaged, or its decoder cannot be streamed.
        """
        fix = "Make the bundle again with `eagle3chat export`."
        if not path.is_file():
            raise BundleError(str(path), "the tokenizer is missing", fix)
        try:
            return cls(Tokenizer.from_file(str(path)))
        except CheckpointError as error:
            raise BundleError(str(path), error.message.rstrip("."), error.fix) from error
        except Exception as error:  # the library raises nothing narrower
            raise BundleError(str(path), f"the tokenizer cannot be read ({error})", fix) from error

    def id_of(self, token: str) -> int | None:
        """The id of the token with exactly this name; None where there is none."""
        id: int | None = self._tokenizer.token_to_id(token)
        return id

    def is_control(self, id: int) -> bool:
        """Whether this is a control token: never part of a reply's text."""
        return id in self._control

    # Encoding

    def encode(self, pieces: Sequence[Piece], bos_id: int = -1) -> list[int]:
        """The ids of a rendered prompt, equal to the library's encoding of the whole text.

        Text of neighbouring pieces is encoded as one run, so that tokens may span their borders. Control tokens are
        found in "template" pieces only, each within one piece; in "content" they are text, whatever it spells.

        Args:
            bos_id: Put in front unless the ids begin with it already; -1: none.
        """
        parts = list(self._parts(pieces))
        ids: list[int] = []
        for index, part in enumerate(parts):
            if isinstance(part, str):
                before = parts[index - 1] if index else None
                after = parts[index + 1] if index + 1 < len(parts) else None
                if isinstance(before, int) and self._control[before].rstrip:
                    part = part.lstrip()  # such a token swallows the white space beside it
                if isinstance(after, int) and self._control[after].lstrip:
                    part = part.rstrip()
                ids += self._encode_run(part, first=index == 0)
            elif isinstance(part, int):
                ids.append(part)
            else:
                ids += part
        return ids if bos_id < 0 or ids[:1] == [bos_id] else [bos_id, *ids]

    def encode_plain(self, text: str) -> list[int]:
        """The ids of text in which control tokens stay text. No BOS."""
        return self.encode([Piece("content", text)])

    def _parts(self, pieces: Sequence[Piece]) -> Iterator[str | int | tuple[int, ...]]:
        """Runs of text (never empty), control tokens, and ids to splice in."""
        run = ""
        for piece in pieces:
            if piece.kind == "content":
                run += piece.text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # no lone surrogates
                continue
            at = 0
            for match in self._control_pattern.finditer(piece.text) if piece.kind == "template" else ():
                if run := run + piece.text[at : match.start()]:
                    yield run
                yield self._control_ids[match.group()]
                run, at = "", match.end()
            run += piece.text[at:]
            if piece.kind == "ids":
                if run:
                    yield run
                yield piece.ids
                run = ""
        if run:
            yield run

    def _encode_run(self, text: str, *, first: bool) -> list[int]:
        for metaspace in self._first_only:  # the library tells the first run by its offset, which is 0 for every run
            metaspace.prepend_scheme = "first" if first else "never"
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    # Decoding

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a whole reply: control tokens skipped, U+FFFD for bytes that are not UTF-8.

        Equals the library's `decode(ids, skip_special_tokens=True)`, except that after a byte-fallback run that is
        not UTF-8 the library gives up every character of the run, and this only the broken ones.
        """
        characters = Characters(self)
        return "".join([characters.step(id) for id in ids]) + characters.flush()

    def token_bytes(self, id: int, *, first: bool = False) -> bytes:
        """UTF-8 bytes of one token of a reply; empty for control tokens and unknown ids.

        Args:
            first: It is the reply's first token: SentencePiece tokenizers drop the space that marks its word.
        """
        if first and self._byte_of_char is None:
            return self._find_bytes(id, first=True)
        if (known := self._inner.get(id)) is None:
            known = self._inner[id] = self._find_bytes(id, first=False)
        return known

    def token_text(self, id: int) -> str:
        """One token alone, for display: a control token by its name, U+FFFD for part of a character, `<id N>` for
        an id that the tokenizer does not know."""
        if (text := self._shown.get(id)) is None:
            name = self._name(id)
            if name is None:
                text = f"<id {id}>"
            elif self.is_control(id):
                text = name
            else:
                text = self.token_bytes(id).decode("utf-8", "replace")
            self._shown[id] = text
        return text

    def _name(self, id: int) -> str | None:
        """The token as the vocabulary spells it."""
        if not 0 <= id < self.vocab_size:  # the library takes 32 bits without a sign
            return None
        name: str | None = self._tokenizer.id_to_token(id)
        return name

    def _find_bytes(self, id: int, *, first: bool) -> bytes:
        name = self._name(id)
        if name is None or self.is_control(id):
            return b""
        if self._byte_of_char is not None:
            known = [self._byte_of_char.get(char) for char in name]
            whole = [byte for byte in known if byte is not None]
            # as the library's decoder: a name with other characters (an added token's) stands for itself
            return bytes(whole) if len(whole) == len(known) else name.encode()
        if self._byte_fallback and (match := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", name)):
            byte = int(match.group(1), 16)
            if byte >= 0x80 or not first:
                return bytes([byte])
        alone: str = self._tokenizer.decode([id])
        if first:
            return alone.encode()
        twice: str = self._tokenizer.decode([id, id])
        return twice[len(alone) :].encode()


class Characters:
    """Whole characters out of token ids, one token at a time; cost and memory do not grow with the reply.

    Only bytes that may still become a character wait, at most three. Bytes that no longer can are U+FFFD at once,
    one for each maximal broken part (Unicode 16, section 3.9, table 3-11), as in `bytes.decode`.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._first = True

    def step(self, id: int) -> str:
        """The characters that this token completes."""
        text = self._utf8.decode(self._codec.token_bytes(id, first=self._first))
        if self._first and not self._codec.is_control(id):
            self._first = False
        return text

    def flush(self) -> str:
        """What waits at the end of the reply: U+FFFD or nothing."""
        return self._utf8.decode(b"", final=True)


def _decoder_names(tokenizer: Tokenizer) -> set[str]:
    """The types in the tokenizer's decoder, those of a sequence included."""
    if tokenizer.decoder is None:
        return set()
    state = json.loads(tokenizer.decoder.__getstate__())
    return {part["type"] for part in [state, *state.get("decoders", ())]}


def _byte_level_alphabet() -> dict[str, int]:
    """Byte of each character that byte-level tokenizers write for it.

    Source: the GPT-2 encoder's table. Printable Latin-1 stands for itself, the other bytes in order for the
    characters from U+0100 on.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    own = {char: ord(char) for char in alphabet if ord(char) < 256}
    others = (byte for byte in range(256) if chr(byte) not in own)
    return own | dict(zip((char for char in alphabet if char not in own), others, strict=True))


def _metaspaces_of_the_first_word(tokenizer: Tokenizer) -> list[Any]:
    """The tokenizer's pre-tokenizers that mark the first word of a text, and no other run's, with a space."""
    outer = tokenizer.pre_tokenizer
    state = json.loads(outer.__getstate__()) if outer is not None else {}
    states = state.get("pretokenizers", [state])
    inner = [outer] if "pretokenizers" not in state else [outer[index] for index in range(len(states))]
    return [one for one, its in zip(inner, states, strict=True) if its.get("prepend_scheme") == "first"]
