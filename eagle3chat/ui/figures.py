"""Lines of figures: what stands under a reply and in the header. Text only, no widget."""

from __future__ import annotations

from eagle3chat.engine.events import Finished, Info, Told
from eagle3chat.engine.requests import Controls
from eagle3chat.ui.clean import clean_line

_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")


def under_reply(finished: Finished) -> list[str]:
    """The parts of the quiet line under a finished reply."""
    usage = finished.usage
    if usage.told is not None:
        return [*told_parts(usage.told), *_speed(finished), ending(finished)]
    if not usage.generated_tokens:
        return [ending(finished)]
    parts = [plural(usage.generated_tokens, "token"), plural(usage.rounds, "round"), f"tau {usage.tau:.2f}"]
    tested = usage.accepted + usage.rejected
    if tested:
        parts.append(f"{usage.accepted} of {tested} tested drafts accepted")
    elif usage.rounds:
        parts.append("plain decoding")
    return [*parts, f"{usage.tokens_per_second:.0f} tok/s", ending(finished)]


def told_parts(told: Told) -> list[str]:
    """What a server told of a reply, and what it did not."""
    parts = ["tokens not known" if told.generated_tokens is None else plural(told.generated_tokens, "token")]
    if not told.source:
        return [*parts, "speculation not known"]
    parts.append("rounds not known" if told.rounds is None else plural(told.rounds, "round"))
    parts.append("tau not known" if told.tau is None else f"tau {told.tau:.2f}")
    if told.drafted is not None and told.accepted is not None:
        parts.append(f"{told.accepted} of {told.drafted} drafts accepted")
    if shares := [f"{share:.2f}".lstrip("0") for share in told.conditional if share is not None]:
        parts.append(f"by place {' '.join(shares)}")
    others = ", other requests included" if told.shared else ""
    return [*parts, f"by {clean_line(told.source)}{others}"]


def _speed(finished: Finished) -> list[str]:
    """Tokens a second, where the tokens are known."""
    speed = finished.usage.tokens_per_second
    return [f"{speed:.0f} tok/s"] if speed else []


def ending(finished: Finished) -> str:
    """Why the reply ended."""
    match finished.reason:
        case "stop":
            return f"stopped at {clean_line(finished.stop)}" if finished.stop else "stopped"
        case "length":
            return "stopped at the length limit"
        case "context":
            return "stopped: the context is full"
        case "cancelled":
            return "stopped by you"


def plural(count: int, noun: str) -> str:
    """`1 round`, `2 rounds`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def chain_state(info: Info | None, controls: Controls, last: int | None = None) -> str:
    """The state of speculation in a few words: it is always told. `last`: the chain that the last rounds found."""
    if info is not None and info.fixed_chain:
        return "chain: the server's"
    if info is not None and info.max_chain == 0:
        return f"chain unavailable: {clean_line(info.unavailable)}" if info.unavailable else "chain unavailable"
    if controls.auto:
        return "chain auto" if last is None else f"chain auto {last}"
    return f"chain {controls.chain}" if controls.chain else "chain off"


def number(value: float) -> str:
    """A setting as a person would write it: 0.8, 1, 0.05."""
    return f"{value:.4g}"


def size(count: int) -> str:
    """Bytes for reading: `412 MiB`."""
    value, place = float(count), 0
    while value >= 1024 and place < len(_SIZES) - 1:
        value, place = value / 1024, place + 1
    return f"{value:.0f} {_SIZES[place]}" if value >= 10 or place == 0 else f"{value:.1f} {_SIZES[place]}"
