"""How OpenAI-compatible servers differ: what each calls a setting, leaves out, and tells.

Facts of the servers' own documentation and source: vLLM to 0.32, SGLang 0.5.16, llama-server of September 2026,
LM Studio of April 2026, mlx_lm.server 0.32. Values only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

USAGE = ("stream_options", {"include_usage": True})
USAGE_ALWAYS = ("stream_options", {"include_usage": True, "continuous_usage_stats": True})
BIG_SEED = 2**63 - 1
GO_ON = (("continue_final_message", True), ("add_generation_prompt", False))


@dataclass(frozen=True, slots=True)
class Dialect:
    """One kind of server."""

    name: str
    extras: tuple[tuple[str, Any], ...] = (USAGE,)  # asked for with every reply, and left out where refused
    repetition: str = "repetition_penalty"  # what it calls that penalty
    no_top_k: int = 0  # top-k that is off
    most_seed: int = BIG_SEED
    limit: int | None = None  # of a reply that nobody limits; None: it has none of its own
    go_on: tuple[tuple[str, bool], ...] = ()  # to go on with the last message; empty: it cannot
    counters: str = ""  # prefix of its counters of speculation
    gauge: str = ""  # name of a gauge of tau
    ignores: tuple[tuple[str, str], ...] = ()  # settings without effect, and why
    tells: str = "none, it tells nothing of them"


VLLM = Dialect(
    "vLLM",
    extras=(USAGE_ALWAYS,),
    no_top_k=-1,
    go_on=GO_ON,
    counters="vllm:",
    tells="from the summary of each reply, or from the counters of the whole server",
)
SGLANG = Dialect(
    "SGLang",
    extras=(USAGE_ALWAYS, ("return_spec_tokens_details", True)),
    no_top_k=-1,
    go_on=GO_ON[:1],
    gauge="sglang:spec_accept_length",
    ignores=(("min_p", "SGLang does not apply min-p while it speculates"),),
    tells="from the details of each reply, or from a gauge of the whole server",
)
LLAMA = Dialect(
    "llama-server",
    extras=(USAGE, ("timings_per_token", True), ("return_progress", True)),
    repetition="repeat_penalty",
    most_seed=2**32 - 2,  # the last one means a drawn seed
    go_on=GO_ON,
    counters="llamacpp:",
    tells="from the timings of each reply; rounds and places from counters, where it was started with --metrics",
)
LM_STUDIO = Dialect(
    "LM Studio",
    repetition="repeat_penalty",
    most_seed=2**31 - 1,
    ignores=(("min_p", "LM Studio's documentation does not name min-p for this interface"),),
    tells="from the statistics of each reply, where it sends them",
)
MLX = Dialect(
    "mlx_lm.server",
    most_seed=2**32 - 1,
    limit=8192,
    ignores=tuple(
        (name, f"mlx_lm.server counts the {name} penalty over the last 20 tokens")
        for name in ("repetition", "presence", "frequency")
    ),
)
LLAMA_PYTHON = Dialect("llama-cpp-python", repetition="repeat_penalty", most_seed=2**32 - 2)
PLAIN = Dialect("server")

_BY_OWNER = {"vllm": VLLM, "sglang": SGLANG, "llamacpp": LLAMA, "me": LLAMA_PYTHON}


def by_owner(owner: str) -> Dialect | None:
    """The dialect by `owned_by` in the list of models; None: that does not tell."""
    return _BY_OWNER.get(owner.lower())
