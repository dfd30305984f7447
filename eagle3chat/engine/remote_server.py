"""What a server is: its kind, its model, its context; asked once when the chat begins. Knows no replies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote

from eagle3chat.engine.errors import ServerError
from eagle3chat.engine.events import Info
from eagle3chat.engine.remote_client import Client, EmptyError, StatusError
from eagle3chat.engine.remote_dialect import LM_STUDIO, MLX, PLAIN, SGLANG, VLLM, Dialect, by_owner
from eagle3chat.engine.remote_json import Json, count, inner, items, text
from eagle3chat.engine.remote_options import ServerOptions

FIXED_CHAIN = "The server sets its chain when it is started"
MODELS_SHOWN = 8
POLL_SECONDS = 1.0
DEFAULT_MODEL = "default_model"  # mlx_lm.server's name for the one it was started with


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answered."""

    dialect: Dialect
    model: str  # as requests name it
    aliases: tuple[str, ...]  # what else its counters may call it
    models: tuple[str, ...]  # all that it lists
    capacity: int | None  # positions of the context; None: not told

    def info(self, options: ServerOptions, template: str, seconds: float) -> Info:
        """All that the screen shows of it.

        Args:
            template: Name of our own; empty: the server's is used.
            seconds: That asking took.
        """
        dialect = self.dialect
        checks = [
            f"{dialect.name} at {options.place}. Figures of speculation: {dialect.tells}. Rejected tokens cannot be "
            "seen through a server, nor which token was drafted."
        ]
        if len(self.models) > 1:
            names = ", ".join(self.models[:MODELS_SHOWN]) + (", ..." if len(self.models) > MODELS_SHOWN else "")
            checks.append(f"It has {len(self.models)} models: {names}. --server-model NAME chooses one.")
        warnings: tuple[str, ...] = ()
        if options.exposes_key:
            warnings = ("The API key goes over the network unencrypted. Use an https address.",)
        missing = ("capacity",) if self.capacity is None else ()
        return Info(
            model=self.model,
            draft="",
            family="",
            backend=dialect.name,
            device=options.place,
            dtype="",
            template=template or "the server's template",
            capacity=self.capacity or 0,
            max_chain=0,
            default_chain=0,
            unavailable=FIXED_CHAIN,
            stops=options.stop_strings,
            load_seconds=seconds,
            memory_bytes=0,
            checks=tuple(checks),
            warnings=warnings,
            fixed_chain=FIXED_CHAIN,
            adjusts=False,
            unknown=("draft", "dtype", "memory_bytes", *missing),
        )


async def find_server(client: Client, options: ServerOptions, tell: Callable[[str], None]) -> Server:
    """Ask a server what it is; waits while it loads its model.

    Args:
        tell: Called with what is going on.

    Raises:
        ServerError: It cannot be reached, is none of the kind, or has no such model.
    """
    tell(f"asking {options.place}")
    listed = await _models(client, options, tell)
    entries: list[Json] = [entry for entry in items(listed, "data") if isinstance(entry, dict)]
    dialect = MLX if options.model == DEFAULT_MODEL else await _dialect(client, entries)
    names = tuple(name for entry in entries if (name := text(entry, "id")))
    model = _model(options.model, entries, names, dialect)
    chosen: Json = next((entry for entry in entries if text(entry, "id") == model), {})
    aliases = tuple(name for name in (text(chosen, "root"),) if name and name != model)
    return Server(dialect, model, aliases, names, await _capacity(client, dialect, model, chosen))


async def _models(client: Client, options: ServerOptions, tell: Callable[[str], None]) -> Json:
    give_up = time.monotonic() + options.timeouts.loading
    while True:
        try:
            return await client.get_json("/v1/models")
        except EmptyError:
            return {}  # as mlx_lm.server does where nothing was ever downloaded
        except StatusError as error:
            if error.status == 503 and time.monotonic() < give_up:
                tell(f"{options.place} loads its model")
                await asyncio.sleep(POLL_SECONDS)
            elif options.model is not None and error.status in (404, 405, 500, 501):
                return {}  # it has no list; the model was named
            else:
                raise


async def _dialect(client: Client, entries: list[Json]) -> Dialect:
    owners = [text(entry, "owned_by") for entry in entries]
    known = next((dialect for owner in owners if (dialect := by_owner(owner)) is not None), None)
    if known is not None:
        return known
    if any("max_model_len" in entry for entry in entries):
        return VLLM
    if await _asked(client, "/api/v0/models"):
        return LM_STUDIO
    return MLX if entries and not any(owners) else PLAIN


def _model(asked: str | None, entries: list[Json], names: tuple[str, ...], dialect: Dialect) -> str:
    if asked is None:
        if dialect is MLX:
            return DEFAULT_MODEL  # its list is that of all downloads, and any of them would be loaded by its name
        if names:
            return names[0]
        fix = f"Name one with --server-model ({DEFAULT_MODEL} of mlx_lm.server), or load one there."
        raise ServerError("The server names no model.", fix)
    if asked in names or not names or (dialect is MLX and asked == DEFAULT_MODEL):
        return asked
    by_root = next((text(entry, "id") for entry in entries if text(entry, "root") == asked), "")
    if by_root:
        return by_root
    shown = ", ".join(names[:MODELS_SHOWN]) + (", ..." if len(names) > MODELS_SHOWN else "")
    raise ServerError(f"The server has no model called {asked}.", f"Use --server-model with one of: {shown}.")


async def _capacity(client: Client, dialect: Dialect, model: str, entry: Json) -> int | None:
    """Positions of the context, as far as the server tells."""
    if dialect in (VLLM, SGLANG):
        return count(entry, "max_model_len")
    if dialect.counters == "llamacpp:":
        props = await _asked(client, "/props") or await _asked(client, f"/props?model={quote(model, safe='')}")
        return count(inner(props, "default_generation_settings"), "n_ctx") or None
    if dialect is LM_STUDIO:
        listed = items(await _asked(client, "/api/v0/models"), "data")
        own: Json = next((m for m in listed if isinstance(m, dict) and m.get("id") == model), {})
        return count(own, "loaded_context_length", "max_context_length")
    return None


async def _asked(client: Client, path: str) -> Json:
    """The object at a path; empty where there is none."""
    try:
        return await client.get_json(path)
    except ServerError:
        return {}
