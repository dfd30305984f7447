"""A target and its draft, opened: backend, tokenizer, template and stops, assembled from options.

The one place that knows which backends exist. Heavy imports happen inside the function that needs them.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3chat.engine.backend import Backend
from eagle3chat.engine.errors import BackendError, BundleError, PromptError, SettingError
from eagle3chat.engine.events import Info
from eagle3chat.engine.requests import PairOptions, Piece, Say
from eagle3chat.engine.text import Codec, Stops
from eagle3chat.templates import Template, affix_template, load_template

if TYPE_CHECKING:
    from eagle3chat.engine.bundle import Bundle

Progress = Callable[[str, float | None], None]


@dataclass(frozen=True, slots=True)
class Pair:
    """An open target and draft, ready to decode."""

    backend: Backend[Any]
    codec: Codec
    template: Template
    stops: Stops
    bos_id: int  # -1: none
    vocab_size: int  # V
    info: Info

    def prompt_ids(self, say: Say) -> list[int]:
        """The token ids of a request's prompt; BOS once. Whoever writes a raw prompt writes its control tokens too.

        Raises:
            PromptError: An id is none of the target's: of a reply that another model wrote, or that somebody changed.
        """
        ids = _prompt_ids(say, self.codec, self.template, self.bos_id)
        strange = next((id for id in ids if not 0 <= id < self.vocab_size), None)
        if strange is not None:
            what = f"Token {strange} of the conversation is outside the vocabulary of {self.vocab_size}."
            raise PromptError(what, "Start a new conversation, or open the model that wrote this one.")
        return ids

    def close(self) -> None:
        """Free the backend's memory."""
        self.backend.close()


def _prompt_ids(say: Say, codec: Codec, template: Template, bos_id: int) -> list[int]:
    if say.raw:
        return codec.encode([Piece("template", say.messages[-1].content)], bos_id)
    *before, last = say.messages
    if last.role != "assistant":
        return codec.encode(template.render(say.messages), bos_id)
    begun = Piece("content", last.content) if last.token_ids is None else Piece("ids", ids=last.token_ids)
    return codec.encode([*template.render(before), begun], bos_id)


def check_bos(bos_id: int, vocab_size: int) -> None:
    """Raise SettingError for a BOS that is no token."""
    if not -1 <= bos_id < vocab_size:
        raise SettingError(f"BOS id {bos_id} is outside the vocabulary.", f"Use 0 to {vocab_size - 1}, or -1: none.")


def check_prompt(tokens: int, capacity: int) -> None:
    """Raise PromptError when a prompt of that many tokens cannot be decoded."""
    if tokens == 0:
        raise PromptError("The prompt is empty.", "Give it some text.")
    if tokens > capacity:
        raise PromptError(
            f"The prompt has {tokens} tokens and the context holds {capacity}.",
            "Shorten it, start a new conversation, or open the model with a larger --context.",
        )


def open_pair(options: PairOptions, progress: Progress | None = None, first: Say | None = None) -> Pair:
    """Open what the options name.

    Args:
        first: A request whose prompt must fit: looked at before any weight is read.

    Raises:
        PromptError: `first` does not fit.
        BundleError: The directory is missing, damaged or inconsistent.
        BackendError: The backend or device cannot be opened on this machine.
        TemplateError: The template is unknown or unreadable.
        SettingError: An option is out of range.
    """
    report = progress or (lambda stage, fraction: None)
    started = time.perf_counter()
    if options.context is not None and options.context < 2:
        raise SettingError(f"A context of {options.context} positions is too short.", "Use 2 or more.")
    if options.backend == "scripted":
        from eagle3chat.engine.scripted_pair import open_scripted

        pair = open_scripted(options)
    else:
        pair = _open_bundle_pair(options, report, first)
    info = dataclasses.replace(pair.info, load_seconds=time.perf_counter() - started)
    return dataclasses.replace(pair, info=info)


def _open_bundle_pair(options: PairOptions, report: Progress, first: Say | None) -> Pair:
    from eagle3chat.engine.bundle import open_bundle

    if not options.bundle:
        raise BundleError("--model", "no bundle was named", "Give a bundle directory.")
    report("checking the bundle", 0.0)
    bundle = open_bundle(Path(options.bundle))
    if options.taps is not None:
        bundle = _with_taps(bundle, options.taps)
    longest = bundle.manifest.max_seq_len
    if options.context is not None and options.context > longest:
        raise SettingError(
            f"A context of {options.context} positions is above the {longest} of this model.",
            f"Use 2 to {longest}, or leave it out.",
        )
    codec = Codec.from_file(bundle.tokenizer_file)
    end = end_of_turn(options, bundle.manifest.stop_ids, codec)
    template = choose_template(options, bundle.manifest.template, bundle.path, end)
    stops = choose_stops(options, bundle.manifest.stop_ids, template, codec)
    manifest = bundle.manifest
    bos_id = manifest.bos_id if options.bos_id is None else options.bos_id
    check_bos(bos_id, manifest.target.vocab_size)
    if first is not None:
        check_prompt(len(_prompt_ids(first, codec, template, bos_id)), options.context or longest)
    opened = _open_backend(options, bundle, report)
    backend = opened.backend
    info = Info(
        model=manifest.name,
        draft=manifest.draft_name,
        family=manifest.family,
        backend=opened.name,
        device=opened.device,
        dtype=opened.dtype,
        template=template.name,
        capacity=backend.capacity,
        max_chain=backend.max_chain,
        default_chain=min(manifest.default_chain, backend.max_chain),
        unavailable=opened.unavailable,
        stops=stop_texts(stops, codec),
        load_seconds=0.0,
        memory_bytes=opened.memory_bytes,
        warnings=opened.warnings,
        pass_bytes=opened.pass_bytes,
    )
    return Pair(backend, codec, template, stops, bos_id, manifest.target.vocab_size, info)


def _with_taps(bundle: Bundle, taps: tuple[int, ...]) -> Bundle:
    manifest = bundle.manifest
    assert manifest.draft is not None and len(taps) == len(manifest.draft.taps)
    draft = dataclasses.replace(manifest.draft, taps=taps)
    return dataclasses.replace(bundle, manifest=dataclasses.replace(manifest, draft=draft))


@dataclass(frozen=True, slots=True)
class _Opened:
    """A backend, and what it says of itself."""

    backend: Backend[Any]
    name: str
    device: str
    dtype: str
    memory_bytes: int
    pass_bytes: int
    unavailable: str  # why there is no speculation; empty: there is
    warnings: tuple[str, ...]


def _open_backend(options: PairOptions, bundle: Bundle, report: Progress) -> _Opened:
    """The backend that the options name; "auto": see `_auto`."""
    name = _auto(options) if options.backend == "auto" else options.backend
    if name not in ("torch", "mlx"):
        raise BackendError(f"There is no backend called {name!r}.", "Use auto, torch, mlx or scripted.")
    wanted = {"device": options.device, "dtype": options.dtype, "context": options.context, "threads": options.threads}
    unavailable = "" if bundle.manifest.draft else "the bundle has no draft"
    warnings: tuple[str, ...] = ()
    try:
        if name == "mlx":
            from eagle3chat.engine.mlx_backend import MlxBackend

            backend = MlxBackend(bundle, **wanted, progress=report)
            unavailable = backend.unavailable
        else:
            from eagle3chat.engine.torch_backend import TorchBackend

            backend = TorchBackend(bundle, **wanted, progress=report)
            warnings = backend.warnings
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in ("torch", "mlx", "mlx_lm"):
            raise
        raise BackendError(f"{library} is not installed.", f"Run: pip install 'eagle3chat[{name}]'") from error
    sizes = (backend.memory_bytes, backend.pass_bytes)
    return _Opened(backend, name, backend.device, backend.dtype, *sizes, unavailable, warnings)


def _auto(options: PairOptions) -> str:
    """MLX where it has Metal and is asked for none of torch's devices; else torch."""
    if sys.platform != "darwin" or options.device.startswith("cuda"):
        return "torch"
    if find_spec("mlx") is None or find_spec("mlx_lm") is None:
        return "torch"
    from eagle3chat.engine.mlx_device import has_metal

    return "mlx" if has_metal() else "torch"


def choose_template(options: PairOptions, default: str, directory: Path | None, end_of_turn: str) -> Template:
    """The template of flags, else the default one.

    Args:
        options: Affixes come before a template's name.
        default: A built-in name, or "model" for the bundle's own.
        directory: The bundle's.
        end_of_turn: The token that ends the model's turns: with affixes it closes the replies of the history.
    """
    if options.chat_prefix is not None or options.chat_suffix is not None:
        suffix = f"{end_of_turn}\n" if end_of_turn else ""
        return affix_template(options.chat_prefix or "", options.chat_suffix or "", reply_suffix=suffix)
    return load_template(options.template or default, bundle_dir=directory)


def end_of_turn(options: PairOptions, bundle_ids: tuple[int, ...], codec: Codec) -> str:
    """The first stop token of the flags, else of the bundle; empty: none."""
    if options.stop_tokens:
        return options.stop_tokens[0]
    ids = bundle_ids if options.stop_ids is None else options.stop_ids
    return codec.token_text(ids[0]) if ids else ""


def choose_stops(options: PairOptions, bundle_ids: tuple[int, ...], template: Template, codec: Codec) -> Stops:
    """Stop ids of flags or bundle, stop tokens of flags or template, stop strings of flags.

    Raises:
        SettingError: A stop id is outside the vocabulary, or a stop token that a flag names is not one token.
    """
    ids = set(bundle_ids if options.stop_ids is None else options.stop_ids)
    for stop in ids:
        if not 0 <= stop < codec.vocab_size:
            raise SettingError(f"Stop id {stop} is outside the vocabulary.", f"Use 0 to {codec.vocab_size - 1}.")
    for token in template.stop_tokens if options.stop_tokens is None else options.stop_tokens:
        token_id = codec.id_of(token)
        if token_id is not None:
            ids.add(token_id)
        elif options.stop_tokens is not None:
            raise SettingError(f"{token!r} is not one token of this model.", "Use --stop for a stop string.")
    return Stops(frozenset(ids), options.stop_strings)


def stop_texts(stops: Stops, codec: Codec) -> tuple[str, ...]:
    """Stop tokens and stop strings as a person reads them."""
    return (*(codec.token_text(i) for i in sorted(stops.ids)), *stops.strings)
